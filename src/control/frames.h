// Frames of the control plane (docs/architecture.md): eight bytes, a payload, and once the ends have a key a tag.
//
//   0  length of the payload, 32 bits     4  kind     5  1: with a tag     6  zero, 16 bits        little endian
//
// A tag is HMAC-SHA256, cut to 16 bytes, over the direction, the frame's number in it, the header and the payload: nobody
// in between changes, repeats, drops or reorders a frame unseen. Before its first frame each end sends twelve bytes that say
// what it speaks.
//
// Pure: bytes in and out. The peer's bytes are kept as far as one frame of a kind that may come now, and no further.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "control/bytes.h"
#include "control/tls.h"
#include "seal/packet_key.h"

namespace netsum::control {

inline constexpr std::string_view magic = "netsum 2\r\n\r\n";  // a web server answers it, and so is told apart

// Requests, the frames before them, and answers. The numbers travel.
enum class Kind : std::uint8_t {
  none = 0,
  greeting = 1,
  challenge = 2,
  proofs = 3,
  welcome = 4,
  answer = 5,
  failure = 6,
  hello = 16,
  join = 17,
  heartbeat = 18,
  leave = 19,
  status = 20,
  install = 21,
  uninstall = 23,
  end = 24,
  drain = 25,
  explain = 26,
};
[[nodiscard]] bool is_request(Kind kind);
// A payload's limit; 0: no frame of this kind may come from a peer in that role.
[[nodiscard]] std::size_t longest_from_caller(Kind kind);
[[nodiscard]] std::size_t longest_from_daemon(Kind kind);

struct Frame {
  Kind kind{};
  std::string_view payload;  // until forget_taken() or received()
};

class Frames {
 public:
  enum class End : std::uint8_t { caller, daemon };
  // `tls`: null: none.
  Frames(End own, std::unique_ptr<TlsStream> tls);

  // Bytes from the network. Throws Broken.
  void received(std::string_view bytes);
  // The next frame, if it is whole. Throws Broken: it is too long, of no kind that may come, or its tag is wrong.
  [[nodiscard]] std::optional<Frame> next();

  // Frames that next() has returned need no memory any more.
  void forget_taken();

  void send(Kind kind, std::string_view payload);
  // From now on, in both directions. Until then, and afterwards a failure before the first tagged frame, come without tags.
  void protect(const seal::PacketKey& key);

  // For the network; sent(n): n bytes of them are gone.
  [[nodiscard]] std::string_view outgoing();
  void sent(std::size_t bytes);

  [[nodiscard]] bool has_tls() const { return tls_ != nullptr; }
  [[nodiscard]] std::string binding() const { return tls_ ? tls_->binding() : std::string(); }
  [[nodiscard]] std::size_t held_bytes() const { return in_.capacity() + out_.capacity(); }
  [[nodiscard]] bool partial() const { return in_.size() > taken_; }  // part of a frame is here

 private:
  static constexpr std::size_t header_bytes = 8, tag_bytes = 16;

  [[nodiscard]] bool magic_is_read();
  void write(std::string_view bytes);
  void tag_of(bool incoming, std::string_view header, std::string_view payload, char* tag);

  const End own_;
  std::unique_ptr<TlsStream> tls_;
  Bytes in_, out_;  // what has come and is not taken, in clear; what goes, as it goes
  std::size_t taken_ = 0, sent_ = 0;
  std::uint64_t received_frames_ = 0, sent_frames_ = 0;  // with tags
  std::optional<seal::PacketKey> key_;
  bool heard_ = false, greeted_ = false;  // any bytes, and the peer's first ones
};

}  // namespace netsum::control
