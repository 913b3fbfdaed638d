// The two ends of a control connection, byte by byte: who is let in, and what becomes of bytes that no end sends.
#include "control/ends.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "control/border.h"
#include "control/broken.h"
#include "control/fingerprint.h"

namespace netsum::control {
namespace {

constexpr char token[] = "a secret of sixteen characters or more";

// A daemon with tokens, or without.
struct Daemon {
  explicit Daemon(const std::string& of_tenants = "", const std::string& of_daemons = "") {
    if (!of_tenants.empty()) tenants = Tenants::one(of_tenants);
    if (!of_daemons.empty()) daemons = Tenants::one(of_daemons);
    manners.wants = [this] { return std::pair(!tenants.empty(), !daemons.empty()); };
    manners.judge = [this](const Proofs& proofs, const std::string& transcript, const std::string& peer) {
      EXPECT_EQ("peer", peer);
      const Tenant* const tenant = tenants.prove(proofs.token, transcript, "Connect", "");
      const Tenant* const daemon = daemons.prove(proofs.daemon_token, transcript, "Connect", "");
      if (!tenants.empty() && tenant == nullptr) return Verdict{std::nullopt, "no", ""};
      const Tenant* const keys = tenant != nullptr ? tenant : daemon;
      return Verdict{Principal{"", "", daemon != nullptr}, "", keys == nullptr ? "" : keys->token};
    };
    end.emplace(manners, nullptr, "peer");
  }

  Tenants tenants, daemons;
  DaemonEnd::Manners manners;
  std::optional<DaemonEnd> end;
};

template <class End>
std::string taken(End& end) {
  const std::string bytes(end.outgoing());
  end.sent(bytes.size());
  return bytes;
}

// Until neither has more to say.
void talk(CallerEnd& caller, DaemonEnd& daemon) {
  while (true) {
    const std::string up = taken(caller);
    daemon.received(up);
    const std::string down = taken(daemon);
    caller.received(down);
    if (up.empty() && down.empty()) return;
  }
}

Bytes hello(const std::string& job) {
  return write(HelloRequest{job});
}

TEST(ControlEnds, ARequestAndItsAnswer) {
  for (const bool tenants : {false, true}) {
    for (const bool daemons : {false, true}) {
      Daemon daemon(tenants ? token : "", daemons ? "another secret, of daemons" : "");
      CallerEnd caller({token, "another secret, of daemons"}, nullptr);
      caller.request(Kind::hello, hello("train"));
      talk(caller, *daemon.end);
      ASSERT_TRUE(daemon.end->principal());
      EXPECT_EQ(daemons, daemon.end->principal()->daemon);
      for (int calls = 0; calls < 3; ++calls) {
        const auto frame = daemon.end->take_request();
        ASSERT_TRUE(frame);
        EXPECT_EQ(Kind::hello, frame->kind);
        EXPECT_EQ("train", parse<HelloRequest>(frame->payload)->job);
        EXPECT_FALSE(daemon.end->take_request()) << "one at a time";
        daemon.end->answer({std::nullopt, hello("answer")});
        talk(caller, *daemon.end);
        const auto answer = caller.take_answer();
        ASSERT_TRUE(answer && !answer->failure);
        EXPECT_EQ(hello("answer"), answer->payload);
        caller.request(Kind::hello, hello("train"));
        talk(caller, *daemon.end);
      }
    }
  }
}

TEST(ControlEnds, AWrongTokenIsRefusedInWords) {
  Daemon daemon(token);
  CallerEnd caller({"another token", ""}, nullptr);
  caller.request(Kind::hello, hello("train"));
  daemon.end->received(taken(caller));
  caller.received(taken(*daemon.end));
  EXPECT_THROW(daemon.end->received(taken(caller)), Broken);
  caller.received(taken(*daemon.end));
  const auto answer = caller.take_answer();
  ASSERT_TRUE(answer && answer->failure);
  EXPECT_EQ("no", answer->failure->words);
  EXPECT_FALSE(daemon.end->take_request());
}

// Where there is a token, nobody in between changes, drops or repeats a frame, in either direction.
TEST(ControlEnds, FramesThatAreChangedOnTheWay) {
  const auto connected = [](auto what) {
    Daemon daemon(token);
    CallerEnd caller({token, ""}, nullptr);
    caller.request(Kind::hello, hello("train"));
    daemon.end->received(taken(caller));
    caller.received(taken(*daemon.end));
    what(caller, *daemon.end);
  };
  connected([](CallerEnd& caller, DaemonEnd& daemon) {
    std::string bytes = taken(caller);
    bytes[bytes.size() - 18] ^= 1;  // the last byte of the request
    daemon.received(bytes);
    EXPECT_THROW(static_cast<void>(daemon.take_request()), Broken);
  });
  connected([](CallerEnd& caller, DaemonEnd& daemon) {
    daemon.received(taken(caller));
    static_cast<void>(daemon.take_request());
    daemon.answer({std::nullopt, hello("answer")});
    std::string bytes = taken(daemon);
    bytes[bytes.size() - 18] ^= 1;
    EXPECT_THROW(caller.received(bytes), Broken);
  });
  connected([](CallerEnd& caller, DaemonEnd& daemon) {
    daemon.received(taken(caller));
    ASSERT_TRUE(daemon.take_request());
    daemon.answer({std::nullopt, hello("answer")});
    caller.received(taken(daemon));
    ASSERT_TRUE(caller.take_answer());
    caller.request(Kind::hello, hello("again"));
    const std::string again = taken(caller);
    daemon.received(again);
    ASSERT_TRUE(daemon.take_request());
    daemon.answer({std::nullopt, hello("answer")});
    daemon.received(again);
    EXPECT_THROW(static_cast<void>(daemon.take_request()), Broken) << "repeated";
  });
}

std::string header(std::uint32_t length, std::uint8_t kind, std::uint8_t flags = 0) {
  std::string bytes(8, '\0');
  store_le(reinterpret_cast<std::byte*>(bytes.data()), length);
  bytes[4] = static_cast<char>(kind);
  bytes[5] = static_cast<char>(flags);
  return bytes;
}
std::string framed(Kind kind, const Bytes& payload) {
  return header(static_cast<std::uint32_t>(payload.size()), static_cast<std::uint8_t>(kind)) +
         std::string(payload.begin(), payload.end());
}

template <class End>
std::string why_broken(End& end, const std::string& bytes) {
  try {
    end.received(bytes);
  } catch (const Broken& broken) {
    return broken.what();
  }
  return "";
}
bool says(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

// Before a proof a daemon takes one greeting and one proof, and no byte more than they may have.
TEST(ControlEnds, WhatStrangersSendIsRefusedAtItsHeader) {
  const std::string start(magic);
  for (const auto& [bytes, words] : std::vector<std::pair<std::string, std::string>>{
           {start + header(5000, 1), "5000 bytes, and the limit is 1024"},
           {start + header(0xffffffff, 3), "4294967295 bytes"},
           {start + header(5, 99), "unknown kind"},
           {start + header(5, 1, 2), "unknown kind"},
           {start + header(5, 4), "unknown kind"},  // a welcome is the daemon's to say
           {start + header(5, 1, 1), "tag"},
           {start + framed(Kind::proofs, write(Proofs{})), "out of turn"},
           {start + framed(Kind::join, {}), "out of turn"},
           {start + framed(Kind::greeting, {}), "16 bytes"},
           {"GET / HTTP/1.1\r\n", "does not speak"},
           {"PRI * HTTP/2.0\r\n", "HTTP/2, as an earlier netsum"},
           {"\x16\x03\x01", "speaks TLS"},
           {"netsum 1\r\n\r\n", "does not speak"}}) {
    Daemon daemon;
    const std::string why = why_broken(*daemon.end, bytes);
    EXPECT_TRUE(says(why, words)) << words << ": " << why;
    EXPECT_LE(daemon.end->held_bytes(), bytes.size() + 100);
  }
}

TEST(ControlEnds, WhatIsNoDaemonIsNamed) {
  for (const auto& [bytes, words] : std::vector<std::pair<std::string, std::string>>{
           {"HTTP/1.1 400 Bad Request\r\n", "this port serves a web page"},
           {std::string("\0\0\x06\x04\0\0\0\0\0", 9), "HTTP/2, as an earlier netsum"},
           {"\x15\x03\x03", "it speaks TLS: pass --tls-ca"},
           {"SSH-2.0-OpenSSH", "does not speak"},
           {std::string(magic) + header(100, 2, 1), "tag"},
           {std::string(magic) + header(20 << 20, 5), "bytes, and the limit is"},
           {std::string(magic) + framed(Kind::answer, {}), "an unexpected frame"}}) {
    CallerEnd caller({}, nullptr);
    const std::string why = why_broken(caller, bytes);
    EXPECT_TRUE(says(why, words)) << words << ": " << why;
  }
}

// Whichever of the two is the older one.
TEST(ControlEnds, OtherLayoutsAreRefusedAndBothVersionsNamed) {
  const std::string nonce(nonce_bytes, 'n');
  Daemon daemon;
  const std::string why =
      why_broken(*daemon.end, std::string(magic) + framed(Kind::greeting, write(Greeting{"0.0.7", "0011", nonce})));
  for (const std::string& words : {std::string("netsum 0.0.7 (layouts 0011)"), version(), fingerprint()}) {
    EXPECT_TRUE(says(why, words)) << why;
  }
  CallerEnd caller({}, nullptr);
  caller.received(std::string(magic) + framed(Kind::challenge, write(Challenge{"9.9", "0022", nonce})));
  const auto answer = caller.take_answer();
  ASSERT_TRUE(answer && answer->failure);
  EXPECT_TRUE(says(answer->failure->words, "the daemon runs netsum 9.9 (layouts 0022)")) << answer->failure->words;
  EXPECT_TRUE(says(answer->failure->words, "the caller netsum " + version())) << answer->failure->words;
}

}  // namespace
}  // namespace netsum::control
