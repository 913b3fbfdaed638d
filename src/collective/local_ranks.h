// A rank's part in shared memory, for a job whose ranks are on one host: its own segment, the others', and the connection to
// the aggregator's broker, whose end reveals a rank's death.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/time.h"
#include "netsum/communicator.h"
#include "runtime/arenas.h"
#include "runtime/shared_engine.h"
#include "transport/local/local_messages.h"
#include "transport/local/local_socket.h"
#include "transport/local/shared_memory.h"

namespace netsum::collective {

// The error of a rank that has used up all arena numbers.
[[nodiscard]] Error too_many_allocations(std::uint32_t rank);

class LocalRanks {
 public:
  struct Config {
    std::string broker;  // name of the broker's socket
    std::uint32_t rank = 0, world_size = 1, threads = 1;
  };

  // Null, with `why_not`: the broker is not on this host, or in another network namespace.
  [[nodiscard]] static std::shared_ptr<LocalRanks> reach(const Config& config, Time deadline, std::string& why_not);

  // The same, over a socket that is already connected to a broker.
  [[nodiscard]] static std::shared_ptr<LocalRanks> over(std::shared_ptr<transport::Descriptor> socket, const Config& config,
                                                        Time deadline, std::string& why_not);

  ~LocalRanks();
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;

  [[nodiscard]] std::uint64_t ticket() const { return ticket_; }  // to show on joining

  // The job is admitted: takes the other ranks' memory. Throws Error: refused, deadline, internal.
  void gather(std::uint64_t job_epoch, Time deadline);

  // For the engine, after gather().
  [[nodiscard]] runtime::SharedSegment& own() const { return *own_; }
  [[nodiscard]] std::vector<const runtime::SharedSegment*> segments() const;
  [[nodiscard]] const std::shared_ptr<runtime::Arenas>& arenas() const { return arenas_; }

  // Memory for tensors that all ranks can read, when all have called this; `meet` is a barrier. Throws Error: as `meet`, the
  // engine's if it fails meanwhile, bad_argument, deadline, aggregator_lost, internal.
  [[nodiscard]] TensorMemory allocate(std::size_t bytes, Time deadline, runtime::SharedEngine& engine,
                                      const std::function<void()>& meet);

 private:
  struct Shown;
  struct Peer {
    std::unique_ptr<transport::PeerMemory> segment;              // null: this rank
    std::vector<std::unique_ptr<transport::PeerMemory>> arenas;  // by number - 1
    std::uint64_t taken = 0;                                     // arenas taken so far
  };

  LocalRanks(const Config& config, std::shared_ptr<transport::Descriptor> socket);
  void send(const transport::LocalMessage& message, const transport::Descriptor* attached, Time deadline);
  void take_arenas(Time deadline, runtime::SharedEngine& engine);
  void take_arena(const transport::LocalMessage& message, const std::shared_ptr<transport::Descriptor>& attached,
                  runtime::SharedEngine& engine);

  const Config config_;
  std::shared_ptr<transport::Descriptor> socket_;
  std::uint64_t ticket_ = 0;
  transport::OwnMemory memory_;
  runtime::SharedSegment* own_;
  std::vector<Peer> peers_;  // by rank
  std::shared_ptr<runtime::Arenas> arenas_ = std::make_shared<runtime::Arenas>();
  std::uint64_t allocations_ = 0;
};

}  // namespace netsum::collective
