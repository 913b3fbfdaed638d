// Bumps in the wire in this process, and ranks that join there and name queue pairs: no hardware. A single one sees no
// packet; through those of two racks the ranks sum, with software queue pairs behind sockets as virtual machines have them.
#include "daemon/bump_daemon.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "control/client.h"
#include "jobs/netreduce_job.h"
#include "netsum/error.h"
#include "protocol/netreduce/roce_host.h"
#include "runtime/thread.h"
#include "session/registry.h"
#include "support/recording_sink.h"
#include "wire/ethernet.h"
#include "wire/netreduce.h"

namespace netsum::daemon {
namespace {

class BumpDaemonTest : public ::testing::Test {
 protected:
  BumpDaemonTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "netsum-bump-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    for (const char* const number : {"0", "1"}) {
      options_.ports.push_back("qemu:" + folder_ + "/wire" + number + "," + folder_ + "/guest" + number);
    }
    options_.state = folder_ + "/state";
    options_.listen = "127.0.0.1:0";
    daemon_ = std::make_unique<BumpDaemon>(options_);
  }
  ~BumpDaemonTest() override {
    daemon_.reset();
    std::filesystem::remove_all(folder_);
  }

  [[nodiscard]] static session::JoinRequest request(const std::string& job, std::uint32_t rank, std::uint32_t receive_qp,
                                                    std::uint8_t host = 1) {
    session::JoinRequest r;
    r.protocol_version = wire::netreduce::version;
    r.protocol = "netreduce";
    r.job = job;
    r.rank = rank;
    r.world_size = 2;
    r.packet_elements = 256;
    r.slots_fixed = 4;
    netreduce::Member member;
    member.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host};  // of both: two NICs would have two
    member.send_qp = receive_qp + 100;
    member.receive_qp = receive_qp;
    r.own = jobs::own_part(jobs::RingAsk{16, {member}});
    r.endpoints.push_back({member.address, 4791, 0});
    return r;
  }

  // What became of both ranks.
  [[nodiscard]] std::vector<std::string> join(const session::JoinRequest& one, const session::JoinRequest& two) {
    std::vector<std::future<std::string>> ranks;
    for (const session::JoinRequest& each : {one, two}) {
      ranks.push_back(std::async(std::launch::async, [this, each] {
        try {
          control::Client client(control::ClientOptions{daemon_->address(), "", ""});
          const session::Admission admission =
              client.join(each, jobs::netreduce_rules(), std::chrono::seconds(20), std::stop_token());
          EXPECT_EQ(2U, jobs::ring_grant(admission).members.size());
          client.leave({admission.job_epoch, each.rank, admission.rank_epoch}, std::chrono::seconds(5));
          return std::string("joined");
        } catch (const Error& error) {
          return std::string(error.what());
        }
      }));
    }
    std::vector<std::string> outcomes;
    for (auto& rank : ranks) outcomes.push_back(rank.get());
    return outcomes;
  }

  [[nodiscard]] std::string state() const {
    std::ifstream file(options_.state);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string folder_;
  BumpOptions options_;
  std::unique_ptr<BumpDaemon> daemon_;
};

TEST_F(BumpDaemonTest, RanksThatJoinNameTheirRingAndItIsWrittenDown) {
  EXPECT_EQ((std::vector<std::string>{"joined", "joined"}), join(request("a", 0, 7), request("a", 1, 8)));
  EXPECT_NE(state().find("10.0.0.1 10.0.0.1 7\n"), std::string::npos) << state();
  EXPECT_NE(state().find("10.0.0.1 10.0.0.1 8\n"), std::string::npos) << state();
}

TEST_F(BumpDaemonTest, QueuePairsThatTwoRanksNameAreNoRingAndNoHarm) {
  const std::vector<std::string> outcomes = join(request("a", 0, 7), request("a", 1, 7));
  EXPECT_NE((std::vector<std::string>{"joined", "joined"}), outcomes);
  EXPECT_EQ(state().find("10.0.0.1 10.0.0.1 7\n"), std::string::npos) << state();
  EXPECT_EQ((std::vector<std::string>{"joined", "joined"}), join(request("b", 0, 7), request("b", 1, 8)));
}

// ---- two racks

constexpr std::uint32_t ranks = 4;  // two in each rack, in the ring's order
constexpr std::size_t ethernet_bytes = wire::ethernet::header_bytes;

// A rank's card: a socket of frames, and its queue pairs.
class Card {
 public:
  Card(const std::string& own, const std::string& bump, std::uint8_t rank)
      : rank_(rank), socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), bump_(address_of(bump)) {
    const sockaddr_un address = address_of(own);
    EXPECT_EQ(0, ::bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address)) << own;
  }
  ~Card() { ::close(socket_); }
  Card(const Card&) = delete;
  Card& operator=(const Card&) = delete;

  void start(const session::Admission& admission) {
    netreduce::RoceHostConfig config = jobs::host_config(admission, jobs::ring_grant(admission), rank_, 0);
    config.selective = false;
    config.accelerator.port = 1;
    self_ = config.accelerator;
    host_.emplace(config);
  }
  void submit(std::vector<std::int32_t>& tensor, std::uint64_t number) {
    stream::Operation operation;
    operation.number = number;
    operation.elements = tensor.size();
    operation.dtype = DType::int32;
    operation.data = tensor.data();
    EXPECT_TRUE(host_->submit(operation, runtime::now(), sink_));
    flush();
  }
  void serve() {
    std::array<std::byte, 9000> frame;
    for (ssize_t bytes = 0; (bytes = ::recv(socket_, frame.data(), frame.size(), 0)) > 0;) {
      const auto packet = std::span(frame).first(static_cast<std::size_t>(bytes)).subspan(ethernet_bytes);
      if (frame[5] != static_cast<std::byte>(rank_ + 1)) continue;  // another's
      const RxView view{packet, self_};
      host_->on_packets({&view, 1}, runtime::now(), sink_);
    }
    host_->on_timer(runtime::now(), sink_);
    flush();
    completed_ += host_->take_completed().size();
  }
  [[nodiscard]] std::size_t completed() const { return completed_; }
  [[nodiscard]] const netreduce::RoceHost& host() const { return *host_; }
  [[nodiscard]] pollfd descriptor() const { return {socket_, POLLIN, 0}; }

 private:
  static sockaddr_un address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    return address;
  }
  void flush() {
    for (const netsum::testing::Datagram& each : sink_.sent()) {
      std::vector<std::byte> frame(ethernet_bytes);
      frame[0] = frame[6] = std::byte{2};
      frame[5] = each.bytes[19];  // the last bytes of IPv4 addresses
      frame[11] = each.bytes[15];
      frame[12] = std::byte{8};
      frame.insert(frame.end(), each.bytes.begin(), each.bytes.end());
      static_cast<void>(::sendto(socket_, frame.data(), frame.size(), 0, reinterpret_cast<const sockaddr*>(&bump_),
                                 sizeof bump_));  // what does not fit is lost
    }
    sink_.clear();
  }

  const std::uint8_t rank_;
  const int socket_;
  const sockaddr_un bump_;
  Endpoint self_;
  std::optional<netreduce::RoceHost> host_;
  netsum::testing::RecordingSink sink_;
  std::size_t completed_ = 0;
};

class BumpsOfTwoRacks : public BumpDaemonTest {
 protected:
  BumpsOfTwoRacks() {
    daemon_.reset();
    for (std::uint32_t rack = 0; rack < 2; ++rack) {
      BumpOptions& rack_options = racks_[rack];
      for (std::uint8_t rank : {std::uint8_t(2 * rack), std::uint8_t(2 * rack + 1)}) {
        rack_options.ports.push_back("qemu:" + path("wire", rank) + "," + path("card", rank));
        cards_.push_back(std::make_unique<Card>(path("card", rank), path("wire", rank), rank));
      }
      rack_options.ports.push_back("qemu:" + path("out", rack) + "," + path("out", 1 - rack));
      rack_options.state = path("state", rack);
      rack_options.listen = "127.0.0.1:0";
      rack_options.racks = true;
      leaves_[rack] = std::make_unique<BumpDaemon>(rack_options);
      rack_options.listen = leaves_[rack]->address();
    }
    // The root is in no wire. Its ring has a thread of its own.
    options_.ports.clear();
    options_.racks = true;
    options_.threads = 2;
    daemon_ = std::make_unique<BumpDaemon>(options_);
  }

  [[nodiscard]] std::string path(const std::string& name, std::uint32_t number) const {
    return folder_ + "/" + name + std::to_string(number);
  }

  // All ranks join at the root, and their queue pairs begin.
  void join() {
    std::vector<std::future<session::Admission>> joins;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      joins.push_back(std::async(std::launch::async, [this, rank] {
        session::JoinRequest r = request("a", rank, 0x1000 + rank, static_cast<std::uint8_t>(rank + 1));
        r.world_size = ranks;
        r.switch_address = racks_[rank / 2].listen;
        control::Client client(control::ClientOptions{daemon_->address(), "", ""});
        return client.join(r, jobs::netreduce_rules(), std::chrono::seconds(20), std::stop_token());
      }));
    }
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      admissions_.push_back(joins[rank].get());
      cards_[rank]->start(admissions_.back());
    }
  }

  // Until `done`, or for 20 s.
  template <class Done>
  [[nodiscard]] bool serve_until(const Done& done) {
    const Time end = runtime::now() + std::chrono::seconds(20);
    while (!done()) {
      if (runtime::now() > end) return false;
      std::vector<pollfd> descriptors;
      for (const auto& card : cards_) descriptors.push_back(card->descriptor());
      ::poll(descriptors.data(), descriptors.size(), 5);
      for (const auto& card : cards_) card->serve();
    }
    return true;
  }

  std::array<BumpOptions, 2> racks_;
  std::array<std::unique_ptr<BumpDaemon>, 2> leaves_;
  std::vector<std::unique_ptr<Card>> cards_;
  std::vector<session::Admission> admissions_;
};

TEST_F(BumpsOfTwoRacks, SumAndOneThatIsStartedAgainEndsTheJob) {
  join();
  constexpr std::size_t elements = 50'000;
  std::vector<std::vector<std::int32_t>> tensors;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    auto& tensor = tensors.emplace_back(elements);
    for (std::size_t i = 0; i < elements; ++i) tensor[i] = static_cast<std::int32_t>(i * (rank + 1));
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) cards_[rank]->submit(tensors[rank], 0);
  ASSERT_TRUE(serve_until([&] {
    return std::all_of(cards_.begin(), cards_.end(),
                       [](const auto& card) { return card->completed() == 1 && card->host().drained(); });
  }));
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < elements; ++i) ASSERT_EQ(static_cast<std::int32_t>(10 * i), tensors[rank][i]) << rank;
  }
  const auto counters_of = [&](const std::string& address) {
    const telemetry::Report report = control::Client({address, "", ""}).report(std::chrono::seconds(5));
    EXPECT_EQ(1U, report.jobs.size());
    std::map<std::string, std::uint64_t> counters;
    for (const auto& [name, value] : report.jobs.front().counters) counters[name] = value;
    return counters;
  };
  for (const BumpOptions& rack : racks_) {
    auto counters = counters_of(rack.listen);
    EXPECT_EQ(counters["sums"], counters["totals"]);
    EXPECT_EQ(2 * counters["sums"], counters["contributions"]);
    EXPECT_EQ(counters["sums"], counters["headers"]) << "of the one connection from the other rack";
    EXPECT_GE(counters["sums_sent_up"], counters["sums"]);
  }
  EXPECT_EQ(2 * counters_of(daemon_->address())["sums"], counters_of(daemon_->address())["contributions"]);
  // Of the first rack: rank 0's and 1's own connections, and that to rank 0.
  std::ifstream file(racks_[0].state);
  const std::string known{std::istreambuf_iterator<char>(file), {}};
  for (const char* const line : {"10.0.0.1 10.0.0.2 4097\n", "10.0.0.2 10.0.0.3 4098\n", "10.0.0.4 10.0.0.1 4096\n"}) {
    EXPECT_NE(known.find(line), std::string::npos) << known;
  }
  EXPECT_EQ(known.find("10.0.0.3 10.0.0.4"), std::string::npos) << known;

  leaves_[0].reset();
  leaves_[0] = std::make_unique<BumpDaemon>(racks_[0]);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) cards_[rank]->submit(tensors[rank], 1);
  control::Client client(control::ClientOptions{daemon_->address(), "", ""});
  session::HeartbeatReply reply;
  ASSERT_TRUE(serve_until([&] {
    reply = client.heartbeat(admissions_[0].job_epoch, 0, admissions_[0].rank_epoch, std::chrono::seconds(5));
    return reply.state == session::HeartbeatReply::State::failed;
  }));
  EXPECT_NE(reply.reason.find(racks_[0].listen), std::string::npos) << reply.reason;
  EXPECT_NE(reply.reason.find("restarted"), std::string::npos) << reply.reason;
  for (const auto& card : cards_) {
    EXPECT_EQ(1U, card->completed());
    EXPECT_EQ("", card->host().failure()) << "nothing came that was not summed";
  }
}

}  // namespace
}  // namespace netsum::daemon
