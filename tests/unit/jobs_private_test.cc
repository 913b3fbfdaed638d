// What ranks with private sums tell each other by way of an aggregator.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "jobs/netreduce_job.h"
#include "jobs/switchml_job.h"
#include "jobs/switchml_terms.h"

namespace netsum::jobs {
namespace {

using session::Admission;
using session::JoinRequest;
using session::ProtocolRules;

constexpr std::uint32_t ranks = 3;

PrivateAsk privacy_of(std::uint32_t rank, const std::string& secret = "a secret of the ranks") {
  std::array<std::byte, 32> drawn{};
  drawn[0] = static_cast<std::byte>(rank + 1);
  return asked_by(seal::Agreement(secret, drawn));
}

// A protocol's way to say it.
struct Way {
  ProtocolRules rules;
  std::function<session::OwnPart(const PrivateAsk&, std::uint32_t rank)> ask;
  std::function<std::vector<seal::PublicKey>(const Admission&)> told;
};

std::vector<Way> every_way() {
  const auto switchml = [](const PrivateAsk& privacy, std::uint32_t) {
    SwitchMlAsk ask;
    ask.privacy = privacy;
    return own_part(ask);
  };
  const auto netreduce = [](const PrivateAsk& privacy, std::uint32_t rank) {
    netreduce::Member member;
    member.send_qp = 2 * rank + 10;
    member.receive_qp = 2 * rank + 11;
    return own_part(RingAsk{16, {member}, privacy});
  };
  return {{switchml_rules(), switchml, [](const Admission& a) { return public_keys(a); }},
          {netreduce_rules(), netreduce, [](const Admission& a) { return public_keys(ring_grant(a)); }}};
}

JoinRequest request(const Way& way, std::uint32_t rank, const PrivateAsk& privacy) {
  JoinRequest request;
  request.rank = rank;
  request.world_size = ranks;
  request.packet_elements = 256;
  request.endpoints.resize(1);
  request.own = way.ask(privacy, rank);
  return request;
}

Admission admitted(const Way& way, const std::vector<JoinRequest>& requests) {
  const session::Placement placement;
  session::Gathered gathered{{}, placement, {}, {}, 256, 16};
  for (const JoinRequest& each : requests) gathered.ranks.push_back(&each);
  Admission admission;
  admission.own = session::agree(way.rules, gathered).own;
  return admission;
}

TEST(PrivateTerms, EachRankIsToldAllPublicKeysByRank) {
  for (const Way& way : every_way()) {
    std::vector<JoinRequest> requests;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) requests.push_back(request(way, rank, privacy_of(rank)));
    const Admission admission = admitted(way, requests);
    const std::vector<seal::PublicKey> keys = way.told(admission);
    ASSERT_EQ(ranks, keys.size());
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ("", session::check_request(way.rules, requests[rank]));
      EXPECT_EQ("", session::check_admission(way.rules, admission, requests[rank]));
      EXPECT_EQ(privacy_of(rank).public_key, std::string(reinterpret_cast<const char*>(keys[rank].data()), 32));
    }
  }
}

TEST(PrivateTerms, RanksThatDifferAreToldSo) {
  for (const Way& way : every_way()) {
    const JoinRequest first = request(way, 0, privacy_of(0));
    const auto what = [&](const PrivateAsk& privacy) {
      const auto difference = session::compare(way.rules, first, request(way, 1, privacy));
      return std::string(difference ? difference->what : "");
    };
    EXPECT_EQ("", what(privacy_of(1)));
    EXPECT_EQ("private sums", what({}));
    EXPECT_EQ("a job key with the fingerprint", what(privacy_of(1, "another secret of ranks")));
    PrivateAsk scaled = privacy_of(1);
    scaled.fixed_exponent = 130;
    EXPECT_NE(std::string::npos, what(scaled).find("a fixed scale"));
  }
}

TEST(PrivateTerms, NoOtherKeysAreTaken) {
  for (const Way& way : every_way()) {
    std::vector<JoinRequest> requests;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) requests.push_back(request(way, rank, privacy_of(rank)));
    const auto refused = [&](const std::vector<JoinRequest>& others, const JoinRequest& asked) {
      return session::check_admission(way.rules, admitted(way, others), asked);
    };
    EXPECT_NE(std::string::npos, refused(requests, request(way, 1, privacy_of(7))).find("another public key for rank 1"));
    EXPECT_NE(std::string::npos, refused(requests, request(way, 1, {})).find("sums that are not private"));
    const std::vector<JoinRequest> open{request(way, 0, {}), request(way, 1, {}), request(way, 2, {})};
    EXPECT_NE(std::string::npos, refused(open, requests[1]).find("public keys of 0 ranks"));
    EXPECT_EQ("", refused(open, open[1]));
    PrivateAsk shorter = privacy_of(1);
    shorter.public_key.pop_back();
    EXPECT_NE(std::string::npos, session::check_request(way.rules, request(way, 1, shorter)).find("32 bytes"));
    JoinRequest many = request(way, 1, privacy_of(1));
    many.world_size = seal::most_private_ranks + 1;
    EXPECT_NE("", session::check_request(way.rules, many));
  }
}

}  // namespace
}  // namespace netsum::jobs
