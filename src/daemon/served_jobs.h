// The jobs that a daemon's services serve, and what the control plane may do with them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "control/server.h"
#include "service/service.h"

namespace netsum::daemon {

class ServedJobs {
 public:
  using Own = std::function<std::vector<Endpoint>()>;  // this daemon's lanes; any thread
  // Throws Error: refused, if nothing shows that one of them receives what is sent there for the caller.
  using Prove = std::function<void(const std::vector<session::Destination>&, const control::Caller&)>;

  // transport::Transport::send_from() of a lane; any thread.
  using SendFrom = std::function<void(std::size_t lane, const Endpoint& to, const Endpoint& own)>;

  // The lanes outlive it.
  ServedJobs(std::vector<std::unique_ptr<service::Service>> services, Own own, Prove prove, SendFrom send_from);

  [[nodiscard]] std::vector<session::ProtocolRules> rules() const;  // of protocols that ranks join
  // Sets all hooks that concern jobs, but fill_report. This outlives their last call.
  void serve(control::ServerHooks& hooks);

  // Adds to the report the jobs whose ranks join elsewhere. `run`: runs a command where a lane's packets are processed.
  void fill(telemetry::Report& report, std::size_t lanes,
            const std::function<void(std::size_t lane, const std::function<void()>&)>& run) const;

 private:
  void name_sources(const std::vector<session::KnownAs>& known_as) const;

  struct Served {
    explicit Served(std::unique_ptr<service::ServedJob> served) : job(std::move(served)) {}

    const std::unique_ptr<service::ServedJob> job;
    std::mutex changing;                            // held while the job is changed
    std::optional<session::JobStatus> installed{};  // of a job whose ranks join elsewhere; guarded by `mutex_`
  };

  [[nodiscard]] std::shared_ptr<Served> find(std::uint64_t epoch) const;
  void start(const session::StartJob& start);
  void stop(std::uint64_t epoch);
  // Throws Error: refused, if there is none for the message.
  [[nodiscard]] service::Service& taker_of(const session::SwitchMessage& message) const;
  session::JobView install(const session::SwitchMessage& message, const control::Caller& caller);
  [[nodiscard]] session::JobView look(std::uint64_t epoch) const;
  void place(const session::StartJob& start, const control::SwitchLanes& switches) const;
  [[nodiscard]] session::SwitchMessage describe(const session::StartJob& start, std::uint32_t switch_id, bool again,
                                                const control::SwitchLanes& switches) const;

  std::vector<std::unique_ptr<service::Service>> services_;
  const Own own_;
  const Prove prove_;
  const SendFrom send_from_;
  std::map<std::string, service::Service*> protocols_;     // those that ranks join, by name
  std::map<std::uint64_t, std::shared_ptr<Served>> jobs_;  // by epoch
  mutable std::mutex mutex_;                               // guards `jobs_`; never wait while holding it
};

}  // namespace netsum::daemon
