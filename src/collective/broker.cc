#include "collective/broker.h"

#include <poll.h>

#include <algorithm>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "collective/local_messages.h"
#include "runtime/arenas.h"
#include "runtime/thread.h"
#include "transport/local_socket.h"

namespace netsum::collective {
namespace {

using transport::Descriptor;
using transport::LocalOutcome;

constexpr std::size_t most_strangers = 1024;                // connections that belong to no job yet
constexpr std::size_t most_queued = 65536;                  // messages for one rank that does not take them
constexpr std::size_t most_arenas = runtime::Arenas::most;  // of one rank
constexpr int retry_ms = 20;

std::uint64_t random_number() {
  std::random_device source;
  return std::uint64_t{source()} << 32 | source();
}

std::string random_name() {
  constexpr char digits[] = "0123456789abcdef";
  std::string name = "netsum-";
  for (int word = 0; word < 2; ++word) {
    std::uint64_t bits = random_number();
    for (int i = 0; i < 16; ++i, bits >>= 4) name += digits[bits & 15];
  }
  return name;
}

struct Connection {
  std::shared_ptr<Descriptor> socket;
  std::shared_ptr<Descriptor> segment;  // null: has not said hello
  std::uint64_t ticket = 0, job_epoch = 0;
  std::uint32_t rank = 0;
  bool in_job = false, closed = false;
  std::size_t arenas = 0;
  std::deque<std::pair<LocalMessage, std::shared_ptr<Descriptor>>> out;
};

}  // namespace

struct Broker::Impl {
  std::string name = random_name();
  std::shared_ptr<Descriptor> listener = transport::listen_local(name);
  runtime::Mailbox mailbox;
  bool stopping = false;
  std::list<Connection> connections;
  std::mutex lost_mutex;
  OnLost on_lost;
  std::thread thread;

  void loop() {
    while (!stopping) {
      std::vector<pollfd> descriptors = {{mailbox.descriptor(), POLLIN, 0}, {listener->number(), POLLIN, 0}};
      bool waiting = false;
      for (const Connection& connection : connections) {
        descriptors.push_back({connection.socket->number(), POLLIN, 0});
        waiting |= !connection.out.empty();
      }
      ::poll(descriptors.data(), descriptors.size(), waiting ? retry_ms : -1);
      if (descriptors[0].revents != 0) mailbox.run_all();
      auto connection = connections.begin();
      for (std::size_t i = 2; i < descriptors.size(); ++i, ++connection) {
        if (descriptors[i].revents != 0) receive(*connection);
      }
      if (descriptors[1].revents != 0) accept();
      for (Connection& each : connections) flush(each);
      remove_closed();
    }
  }

  void accept() {
    while (auto socket = transport::accept_local(*listener)) {
      const auto strangers = std::count_if(connections.begin(), connections.end(), [](const auto& c) { return !c.in_job; });
      if (static_cast<std::size_t>(strangers) < most_strangers) connections.emplace_back().socket = std::move(socket);
    }
  }

  void receive(Connection& connection) {
    while (!connection.closed) {
      LocalMessage message;
      std::shared_ptr<Descriptor> attached;
      const LocalOutcome outcome = transport::receive_local(*connection.socket, message.writable(), attached);
      if (outcome == LocalOutcome::later) return;
      if (outcome == LocalOutcome::closed || message.magic != LocalMessage::expected_magic) {
        connection.closed = true;
      } else if (message.type == LocalType::hello && attached && !connection.segment) {
        connection.segment = std::move(attached);
        connection.ticket = random_number() | 1;
        LocalMessage answer;
        answer.type = LocalType::ticket;
        answer.ticket = connection.ticket;
        connection.out.emplace_back(answer, nullptr);
      } else if (message.type == LocalType::arena && attached && connection.in_job && ++connection.arenas <= most_arenas) {
        forward(connection, message, attached);
      } else if (message.type == LocalType::arena_gone && connection.in_job && connection.arenas > 0) {
        --connection.arenas;
        forward(connection, message, nullptr);
      } else {
        connection.closed = true;
      }
    }
  }

  void forward(const Connection& from, LocalMessage message, const std::shared_ptr<Descriptor>& attached) {
    message.rank = from.rank;
    message.job_epoch = from.job_epoch;
    for (Connection& other : connections) {
      if (&other != &from && other.in_job && other.job_epoch == from.job_epoch) other.out.emplace_back(message, attached);
    }
  }

  static void flush(Connection& connection) {
    while (!connection.closed && !connection.out.empty()) {
      const auto& [message, attached] = connection.out.front();
      const LocalOutcome outcome = transport::send_local(*connection.socket, message.bytes(), attached.get());
      if (outcome == LocalOutcome::closed) connection.closed = true;
      if (outcome != LocalOutcome::done) break;
      connection.out.pop_front();
    }
    if (connection.out.size() > most_queued) connection.closed = true;
  }

  void remove_closed() {
    for (auto connection = connections.begin(); connection != connections.end();) {
      if (!connection->closed) {
        ++connection;
        continue;
      }
      const bool in_job = connection->in_job;
      const std::uint64_t job_epoch = connection->job_epoch;
      const std::uint32_t rank = connection->rank;
      connection = connections.erase(connection);
      const std::lock_guard lock(lost_mutex);
      if (in_job && on_lost) on_lost(job_epoch, rank);
    }
  }

  void start_job(std::uint64_t job_epoch, const std::vector<std::uint64_t>& tickets) {
    std::vector<Connection*> members;
    for (const std::uint64_t ticket : tickets) {
      const auto found = std::find_if(connections.begin(), connections.end(),
                                      [&](const Connection& c) { return !c.in_job && c.segment && c.ticket == ticket; });
      members.push_back(found == connections.end() ? nullptr : &*found);
      if (found == connections.end()) continue;
      found->in_job = true;
      found->job_epoch = job_epoch;
      found->rank = static_cast<std::uint32_t>(members.size() - 1);
    }
    // A rank that is gone, or two that showed the same ticket: nobody waits for a job that cannot come together.
    const bool complete = std::find(members.begin(), members.end(), nullptr) == members.end();
    for (Connection* const to : members) {
      if (to == nullptr) continue;
      to->closed |= !complete;
      for (const Connection* const from : members) {
        if (!complete || from == to) continue;
        LocalMessage message;
        message.type = LocalType::member;
        message.rank = from->rank;
        message.job_epoch = job_epoch;
        to->out.emplace_back(message, from->segment);
      }
    }
  }
};

Broker::Broker(OnLost on_lost) : impl_(std::make_unique<Impl>()) {
  impl_->on_lost = std::move(on_lost);
  const runtime::SignalsBlocked blocked;
  impl_->thread = std::thread([impl = impl_.get()] {
    runtime::enter_thread("netsum-broker", -1);
    impl->loop();
  });
}

Broker::~Broker() {
  silence();
  impl_->mailbox.post([impl = impl_.get()] { impl->stopping = true; });
  impl_->thread.join();
}

const std::string& Broker::name() const {
  return impl_->name;
}

void Broker::start_job(std::uint64_t job_epoch, const std::vector<std::uint64_t>& tickets) {
  impl_->mailbox.post([impl = impl_.get(), job_epoch, tickets] { impl->start_job(job_epoch, tickets); });
}

void Broker::stop_job(std::uint64_t job_epoch) {
  impl_->mailbox.post([impl = impl_.get(), job_epoch] {
    for (Connection& connection : impl->connections) {
      if (!connection.in_job || connection.job_epoch != job_epoch) continue;
      connection.in_job = false;  // nobody is lost
      connection.closed = true;
    }
  });
}

void Broker::silence() {
  const std::lock_guard lock(impl_->lost_mutex);
  impl_->on_lost = nullptr;
}

}  // namespace netsum::collective
