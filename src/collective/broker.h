// At an aggregator: brings the ranks of a job that are all on its host together in shared memory. Each gives the broker a
// descriptor of what it shows, and gets the others' when the job is admitted; after that the aggregator has no part in sums.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace netsum::collective {

class Broker {
 public:
  using OnLost = std::function<void(std::uint64_t job_epoch, std::uint32_t rank)>;

  // `on_lost`, from the broker's thread: a rank's connection ended, while its job runs. Throws Error: internal.
  explicit Broker(OnLost on_lost);
  ~Broker();
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;

  // Of the abstract socket: random, so that only whom the aggregator tells it finds it.
  [[nodiscard]] const std::string& name() const;

  void start_job(std::uint64_t job_epoch, const std::vector<std::uint64_t>& tickets);  // by rank
  void stop_job(std::uint64_t job_epoch);

  // on_lost is not called any more, nor under way.
  void silence();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::collective
