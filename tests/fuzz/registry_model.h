// A registry beside a book of what it said: what must hold after every call, whatever the calls are.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fuzz/harness.h"
#include "session/registry.h"
#include "session/supervisor.h"

namespace netsum::fuzz {

class CheckedRegistry {
 public:
  static constexpr std::uint32_t lanes = 2, slots = 4096, max_jobs = 3;

  struct Ticket {
    std::uint64_t number = 0;
    bool answered = false, cancelled = false;
  };
  struct Life {  // of a rank, as its admission told it
    std::uint64_t job_epoch = 0;
    std::uint32_t rank = 0, rank_epoch = 0;
  };

  std::vector<Ticket> tickets;
  std::vector<Life> lives;

  void join(const session::JoinRequest& request) {
    const std::uint64_t ticket = registry_.join(request, now_);
    check(std::none_of(tickets.begin(), tickets.end(), [&](const Ticket& t) { return t.number == ticket; }), "a new ticket");
    tickets.push_back({ticket});
    carry_out();
  }

  void poll(std::size_t index) {
    Ticket& ticket = tickets[index];
    const auto outcome = registry_.join_outcome(ticket.number);
    if (!outcome) return;
    check(!ticket.answered && !ticket.cancelled, "a ticket is answered at most once");
    ticket.answered = true;
    if (outcome->refusal != session::Refusal::none) {
      check(!outcome->admission && !outcome->reason.empty(), "a refusal says why");
      check(outcome->reason.find('\n') == std::string::npos && outcome->reason.size() < 2048, "in one short line");
      return;
    }
    check(outcome->admission.has_value(), "no refusal is an admission");
    const session::Admission& a = *outcome->admission;
    const auto at = std::find(a.rank_epochs.begin(), a.rank_epochs.end(), a.rank_epoch);
    check(at != a.rank_epochs.end() && started_.contains(a.job_epoch), "the job was started before its ranks hear of it");
    lives.push_back({a.job_epoch, static_cast<std::uint32_t>(at - a.rank_epochs.begin()), a.rank_epoch});
  }

  void cancel(std::size_t index) {
    static_cast<void>(registry_.cancel_join(tickets[index].number, now_));
    tickets[index].cancelled = true;
    carry_out();
  }

  void heartbeat(const Life& life) {
    const auto reply = registry_.heartbeat(life.job_epoch, life.rank, life.rank_epoch, now_);
    const bool member = is_member(life);
    using State = session::HeartbeatReply::State;
    check((reply.state == State::running) == (member && running_.contains(life.job_epoch)),
          "a running job's rank is told so");
    check(reply.state != State::failed || (!reply.reason.empty() && !running_.contains(life.job_epoch)),
          "a failure says why");
    check(!reply.lost || *reply.lost < max_world_size, "who was lost is a rank");
    if (reply.state == State::running) heard_[{life.job_epoch, life.rank}] = now_;
    // The rank at the other end takes the same answer.
    session::Supervisor supervisor({"job", life.rank, {"aggregator"}}, now_);
    check(supervisor.on_reply(0, reply, now_).has_value() == (reply.state != State::running), "the rank concludes the same");
  }

  void leave(const Life& life) {
    registry_.leave(life.job_epoch, life.rank, life.rank_epoch, now_);
    if (is_member(life) && running_.contains(life.job_epoch)) left_.insert({life.job_epoch, life.rank});
    carry_out();
  }

  void tick(Duration passed) {
    now_ += passed;
    registry_.on_timer(now_);
    carry_out();
    check(registry_.next_timeout() > now_, "a timer that was served is not due");
    for (const auto& [rank, heard] : heard_) {
      if (!running_.contains(rank.first) || left_.contains(rank)) continue;
      check(now_ - heard < heartbeat_timeout, "a rank that fell silent ends its job");
    }
  }

  void shut_down() {
    registry_.shut_down(now_);
    carry_out();
    check(running_.empty() && registry_.slots_free() == slots, "nothing runs after the end");
  }

  // In the end every ticket is answered: nobody waits for ever.
  void end() {
    tick(join_timeout);
    for (std::size_t i = 0; i < tickets.size(); ++i) {
      poll(i);
      check(tickets[i].answered || tickets[i].cancelled, "every join is answered");
    }
    tick(heartbeat_timeout);
    check(running_.empty() && registry_.slots_free() == slots, "jobs whose ranks fell silent give their slots back");
    tick(std::chrono::minutes(1));
    check(registry_.jobs().empty() && registry_.next_timeout() == never, "and are forgotten");
  }

 private:
  static constexpr Duration heartbeat_timeout = std::chrono::seconds(3), join_timeout = std::chrono::seconds(60);

  struct Started {
    std::string job;
    std::vector<std::uint32_t> rank_epochs;
    std::uint32_t charged = 0;
  };

  [[nodiscard]] bool is_member(const Life& life) const {
    const auto job = started_.find(life.job_epoch);
    return job != started_.end() && life.rank < job->second.rank_epochs.size() &&
           job->second.rank_epochs[life.rank] == life.rank_epoch;
  }

  // What a server does after each call.
  void carry_out() {
    for (const session::StopJob& stop : registry_.take_stops()) {
      check(running_.erase(stop.job_epoch) == 1, "what is stopped ran");
    }
    for (const session::StartJob& start : registry_.take_starts()) {
      const session::Admission& a = start.admission;
      check(a.job_epoch != 0 && !started_.contains(a.job_epoch), "a job epoch is issued once");
      check(a.rank_epochs.size() == start.endpoints.size() && !a.rank_epochs.empty(),
            "an epoch and endpoints for each rank");
      for (const auto& endpoints : start.endpoints) check(endpoints.size() == lanes, "an endpoint for each lane");
      for (const std::uint32_t epoch : a.rank_epochs) {
        check(epoch != 0 && rank_epochs_.insert(epoch).second, "a rank epoch is issued once");
      }
      check(a.slots >= 1 && (a.slots & (a.slots - 1)) == 0, "a power of two slots");
      const std::uint32_t unit = std::max(1U, (a.packet_elements + 255) / 256) * lanes;
      started_[a.job_epoch] = {start.job, a.rank_epochs, a.slots * unit};
      running_.insert(a.job_epoch);
      for (std::uint32_t rank = 0; rank < a.rank_epochs.size(); ++rank) heard_[{a.job_epoch, rank}] = now_;
    }
    std::uint32_t charged = 0;
    for (const std::uint64_t epoch : running_) charged += started_[epoch].charged;
    check(registry_.slots_free() + charged == slots, "slots are free or charged to a job that runs");
    std::set<std::string> names;
    std::size_t runs = 0;
    for (const session::JobStatus& job : registry_.jobs()) {
      if (job.running) ++runs;
      if (job.running || job.failure.empty()) check(names.insert(job.job).second, "a name is one job's");
      check(!job.running || (running_.contains(job.job_epoch) && started_[job.job_epoch].job == job.job), "its own epoch");
      check(job.joined.minus(RankSet::first(job.world_size)).empty() && job.left.minus(job.joined).empty(),
            "ranks of the job");
    }
    check(runs == running_.size() && names.size() <= max_jobs, "what runs is listed");
    check(registry_.next_timeout() != never || registry_.jobs().empty(), "whatever there is has an end");
  }

  std::uint64_t random_ = 0;
  session::Registry registry_{[this] {
    session::RegistryConfig config;
    config.lanes = lanes;
    config.slots = slots;
    config.max_jobs = max_jobs;
    config.heartbeat_timeout = heartbeat_timeout;
    config.join_timeout = join_timeout;
    config.random = [this] { return ++random_ / 3 * 0x9e3779b97f4a7c15; };  // often the same: none must come again
    return config;
  }()};
  Time now_{};
  std::map<std::uint64_t, Started> started_;
  std::set<std::uint64_t> running_;
  std::set<std::uint32_t> rank_epochs_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, Time> heard_;
  std::set<std::pair<std::uint64_t, std::uint32_t>> left_;
};

}  // namespace netsum::fuzz
