// A rank's place in the shared memory of its job's ranks on one host: its own segment, the others', and the connection to
// the aggregator's broker, by whose end a death is noticed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/time.h"
#include "runtime/shared_engine.h"
#include "transport/local_socket.h"
#include "transport/shared_memory.h"

namespace netsum::collective {

class LocalGroup {
 public:
  struct Config {
    std::string broker;  // its socket's name
    std::uint32_t rank = 0, world_size = 1, threads = 1;
  };

  // Null, with the reason: the broker is not on this host, or in another network namespace.
  [[nodiscard]] static std::shared_ptr<LocalGroup> reach(const Config& config, Time deadline, std::string& why_not);

  ~LocalGroup();
  LocalGroup(const LocalGroup&) = delete;
  LocalGroup& operator=(const LocalGroup&) = delete;

  [[nodiscard]] std::uint64_t ticket() const { return ticket_; }  // to show on joining

  // The job is admitted: takes the other ranks' memory. Throws Error: refused, deadline, internal.
  void gather(std::uint64_t job_epoch, Time deadline);

  // Then, for the engine.
  [[nodiscard]] runtime::SharedSegment& own() const { return *own_; }
  [[nodiscard]] std::vector<const runtime::SharedSegment*> segments() const;

 private:
  LocalGroup(const Config& config, std::shared_ptr<transport::Descriptor> socket);

  const Config config_;
  std::shared_ptr<transport::Descriptor> socket_;
  std::uint64_t ticket_ = 0;
  transport::OwnMemory memory_;
  runtime::SharedSegment* own_;
  std::vector<std::unique_ptr<transport::PeerMemory>> peers_;  // by rank; null: this one
};

}  // namespace netsum::collective
