// At an aggregator: connects the ranks of a job in shared memory, if all are on its host. Each gives the broker a descriptor
// of its segment, and gets the others' when the job is admitted; after that the aggregator has no part in sums.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace netsum::daemon {

class Broker {
 public:
  using OnLost = std::function<void(std::uint64_t job_epoch, std::uint32_t rank)>;

  // For ranks of this process's user, of root, and of `users`, by name or number. `on_lost`, from the broker's thread: a
  // rank's connection ended while its job runs. Throws Error: bad_argument (no such user), internal.
  Broker(const std::vector<std::string>& users, OnLost on_lost);
  ~Broker();
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;

  // The abstract socket's name: random, so that no two are the same. Users of the host can see it in /proc/net/unix.
  [[nodiscard]] const std::string& name() const;

  void start_job(std::uint64_t job_epoch, const std::vector<std::uint64_t>& tickets);  // by rank
  void stop_job(std::uint64_t job_epoch);

  // Afterwards on_lost is neither running nor called again.
  void silence();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::daemon
