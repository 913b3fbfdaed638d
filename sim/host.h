// The common part of all simulated hosts: a local clock, sockets, and the next time to run.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/packet_io.h"
#include "base/time.h"
#include "service/service.h"
#include "session/job_view.h"
#include "session/registry.h"
#include "sim/network.h"

namespace netsum::sim {

struct JoinCall {
  session::JoinRequest request;
};
struct CancelCall {  // the connection of a join was lost
  std::uint64_t join = 0;
};
struct BeatCall {
  std::uint64_t job_epoch = 0;
  std::uint32_t rank = 0, rank_epoch = 0;
  std::string call{};
  session::SiteSet seen{};
  session::Pace pace{};
};
struct CloseCall {  // the connection of a rank that ran was lost
  std::uint64_t job_epoch = 0;
  std::uint32_t rank = 0, rank_epoch = 0;
};
struct LeaveCall {
  std::uint64_t job_epoch = 0;
  std::uint32_t rank = 0, rank_epoch = 0;
  session::Farewell why{};
};
// From an aggregator to a switch below it: asks for the switch's endpoints.
struct GreetCall {};
// Tells a switch to serve a job.
struct InstallCall {
  session::SwitchMessage message;
  std::uint32_t job = 0;  // of the scenario
};
struct RemoveCall {
  std::uint64_t job_epoch = 0;
};
struct ControlCall {
  std::uint64_t number = 0;  // assigned by the caller
  HostId from = 0;
  std::variant<JoinCall, CancelCall, BeatCall, CloseCall, LeaveCall, GreetCall, InstallCall, RemoveCall> what;
  std::string tenant{};  // the caller's tenant
};
struct Greeted {
  std::uint32_t switch_id = 0;  // scenario's number, as below
  std::vector<Endpoint> lanes;
  std::uint64_t instance = 0;
};
struct Installed {
  std::uint64_t job_epoch = 0;
  std::uint32_t switch_id = 0;
  bool lost = false;      // state that the job depends on
  bool declined = false;  // the job goes on without this switch
  session::JobView view;
  std::uint64_t instance = 0;
};
struct Removed {
  std::uint32_t switch_id = 0;
};
struct ControlReply {
  std::uint64_t number = 0;
  HostId from = 0;
  std::variant<session::JoinOutcome, session::HeartbeatReply, Greeted, Installed, Removed> what;
};

// Services of the cluster to its hosts. Times are the host's local ones.
class Surroundings {
 public:
  virtual void send(HostId from, const Endpoint& source, const Endpoint& destination, std::span<const std::byte> bytes) = 0;
  virtual void call(HostId from, HostId aggregator, ControlCall call) = 0;
  virtual void reply(HostId from, HostId worker, ControlReply reply) = 0;
  virtual void say(HostId who, const std::string& what) = 0;  // for the trace
  // Bytes that have come to this socket of the host, and wait for a thread of it.
  [[nodiscard]] virtual std::uint64_t waiting(HostId, const Endpoint&) const { return 0; }

 protected:
  ~Surroundings() = default;
};

class Host {
 public:
  Host(Surroundings& surroundings, HostId id) : surroundings_(surroundings), id_(id) {}
  virtual ~Host() = default;
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  [[nodiscard]] HostId id() const { return id_; }

  // Datagrams that have arrived since the last turn, oldest first; then everything that is due.
  virtual void turn(std::span<const Datagram> datagrams, Time now) = 0;
  virtual void on_call(const ControlCall&, Time) {}
  virtual void on_reply(const ControlReply&, Time) {}
  [[nodiscard]] virtual Time next_wake() const = 0;

  // Implements the contract of Sink strictly: references are read at flush() and not before.
  class HostSink final : public Sink {
   public:
    HostSink(Surroundings& surroundings, HostId host, const Endpoint& self)
        : surroundings_(surroundings), host_(host), self_(self) {}
    ~HostSink() = default;

    std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override;
    void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override;
    void flush() override;

   private:
    struct Item {
      std::size_t begin = 0, bytes = 0;  // of owned_
      std::span<const std::byte> referenced;
      std::span<const Endpoint> to;  // empty: an owned one, to `one`
      Endpoint one;
    };
    Surroundings& surroundings_;
    HostId host_;
    Endpoint self_;
    std::vector<Item> items_;
    std::vector<std::byte> owned_;  // one after the other
  };

 protected:
  Surroundings& surroundings_;

 private:
  HostId id_;
};

// A protocol's view of the datagram; valid as long as the datagram.
[[nodiscard]] inline RxView view_of(const Datagram& datagram) {
  return {datagram.bytes, datagram.from, datagram.marked};
}

// Of a rank's first lane; a host that is started again elsewhere has others.
inline constexpr std::uint16_t first_worker_port = 20000, ports_per_life = 100;
inline constexpr std::uint16_t stranger_port = 6666;

[[nodiscard]] Endpoint endpoint_of(HostId host, std::uint16_t port);
[[nodiscard]] HostId host_of(const Endpoint& endpoint);

}  // namespace netsum::sim
