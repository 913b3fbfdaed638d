#include "control/frames.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "control/broken.h"
#include "control/digest.h"
#include "control/messages.h"

namespace netsum::control {
namespace {

constexpr std::size_t longest_handshake = 1024;  // greeting and proofs together stay below 4 KiB

// Which protocol the other end speaks, where it is not netsum's.
std::string spoken_in_place(std::string_view begin, bool by_daemon) {
  if (begin.starts_with('\x16') || begin.starts_with('\x15')) {
    return by_daemon ? "it speaks TLS: pass --tls-ca FILE, where the daemon has --tls-cert"
                     : "it speaks TLS, and this daemon has no --tls-cert";
  }
  if (begin.starts_with("PRI") || (by_daemon && begin.size() >= 4 && begin[3] == '\x04')) {
    return "it speaks HTTP/2, as an earlier netsum did: install the same version at both ends";
  }
  if (begin.starts_with("HTTP")) return "this port serves a web page: is it the --metrics port? Give the --listen port";
  return "it does not speak netsum's control protocol";
}

}  // namespace

bool is_request(Kind kind) {
  return kind >= Kind::hello && kind <= Kind::explain;
}

std::size_t longest_from_caller(Kind kind) {
  switch (kind) {
    case Kind::greeting:
    case Kind::proofs:
    case Kind::hello:
    case Kind::heartbeat:
    case Kind::status:
    case Kind::uninstall:
    case Kind::end:
    case Kind::drain:
    case Kind::explain:
      return longest_handshake;
    case Kind::leave:
      return 4 << 10;  // with a reason
    case Kind::join:
      return 256 << 10;  // with the addresses of all aggregators
    case Kind::install:
      return 4 << 20;  // with the endpoints and keys of all ranks
    default:
      return 0;
  }
}

std::size_t longest_from_daemon(Kind kind) {
  switch (kind) {
    case Kind::challenge:
    case Kind::welcome:
      return longest_handshake;
    case Kind::failure:
      return 4 << 10;
    case Kind::answer:
      return longest_report;
    default:
      return 0;
  }
}

Frames::Frames(End own, std::unique_ptr<TlsStream> tls) : own_(own), tls_(std::move(tls)) {
  write(magic);
}

void Frames::forget_taken() {
  if (taken_ == 0) return;
  // Into less memory: a connection lives longer than its largest frame.
  Bytes(in_.begin() + static_cast<std::ptrdiff_t>(taken_), in_.end()).swap(in_);
  taken_ = 0;
}

void Frames::received(std::string_view bytes) {
  forget_taken();
  if (tls_ && own_ == End::daemon && !heard_ && bytes.starts_with(magic.front())) {
    tls_.reset();  // to a caller without TLS nothing else could be said
    write(magic);
    throw Broken("it does not speak TLS", true);
  }
  heard_ = true;
  if (tls_) {
    tls_->received(bytes, in_);
  } else {
    in_.insert(in_.end(), bytes.begin(), bytes.end());
  }
}

bool Frames::magic_is_read() {
  if (greeted_) return true;
  const std::string_view begin = view(in_).substr(0, magic.size());
  if (begin != magic.substr(0, begin.size())) {
    throw Broken(spoken_in_place(begin, own_ == End::caller), true);
  }
  if (begin.size() < magic.size()) return false;
  taken_ = magic.size();
  return greeted_ = true;
}

std::optional<Frame> Frames::next() {
  if (!magic_is_read()) return std::nullopt;
  const std::string_view rest = view(in_).substr(taken_);
  if (rest.size() < header_bytes) return std::nullopt;
  const auto* const header = reinterpret_cast<const std::byte*>(rest.data());
  const std::size_t length = load_le<std::uint32_t>(header);
  const auto kind = static_cast<Kind>(rest[4]);
  const bool tagged = rest[5] == 1;
  const std::size_t longest = own_ == End::daemon ? longest_from_caller(kind) : longest_from_daemon(kind);
  if (longest == 0 || (rest[5] & ~1) != 0 || rest[6] != 0 || rest[7] != 0)
    throw Broken("it sent a frame of an unknown kind");
  if (length > longest) {
    throw Broken("it sent a frame of " + std::to_string(length) + " bytes, and the limit is " + std::to_string(longest));
  }
  // A failure ends the connection; who has no key yet, or not the same, cannot tag it.
  const bool last_words = kind == Kind::failure && own_ == End::caller && received_frames_ == 0;
  if (tagged != key_.has_value() && !last_words) throw Broken("it sent a frame without a tag, or with an unexpected one");
  if (tagged && !key_) throw Broken("it sent a tag before the keys were agreed");
  const std::size_t whole = header_bytes + length + (tagged ? tag_bytes : 0);
  if (rest.size() < whole) return std::nullopt;
  const std::string_view payload = rest.substr(header_bytes, length);
  if (tagged) {
    std::array<char, tag_bytes> expected{};
    tag_of(true, rest.substr(0, header_bytes), payload, expected.data());
    if (CRYPTO_memcmp(expected.data(), payload.data() + length, tag_bytes) != 0) {
      throw Broken(
          "it sent a frame with a wrong tag: the token differs at the two ends, or a host in between changes frames");
    }
    ++received_frames_;
  }
  taken_ += whole;
  return Frame{kind, payload};
}

void Frames::send(Kind kind, std::string_view payload) {
  std::array<char, header_bytes> header{};
  store_le(reinterpret_cast<std::byte*>(header.data()), static_cast<std::uint32_t>(payload.size()));
  header[4] = static_cast<char>(kind);
  header[5] = key_ ? 1 : 0;
  Bytes whole(header.begin(), header.end());
  whole.insert(whole.end(), payload.begin(), payload.end());
  if (key_) {
    std::array<char, tag_bytes> tag{};
    tag_of(false, {header.data(), header.size()}, payload, tag.data());
    whole.insert(whole.end(), tag.begin(), tag.end());
    ++sent_frames_;
  }
  write(view(whole));
}

void Frames::protect(const seal::PacketKey& key) {
  key_ = key;
}

void Frames::tag_of(bool incoming, std::string_view header, std::string_view payload, char* tag) {
  const bool from_caller = incoming != (own_ == End::caller);
  constexpr std::size_t before = 1 + sizeof(std::uint64_t);  // the direction, and the frame's number
  Bytes text(before + header.size() + payload.size());
  text[0] = from_caller ? 'c' : 'd';
  store_le(reinterpret_cast<std::byte*>(&text[1]), incoming ? received_frames_ : sent_frames_);
  std::copy(payload.begin(), payload.end(), std::copy(header.begin(), header.end(), text.begin() + before));
  const std::string_view key(reinterpret_cast<const char*>(key_->bytes().data()), key_->bytes().size());
  const Digest digest = hmac_sha256(key, view(text));
  std::copy_n(digest.begin(), tag_bytes, tag);
}

void Frames::write(std::string_view bytes) {
  if (tls_) {
    tls_->write(bytes);
  } else {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
}

std::string_view Frames::outgoing() {
  if (tls_) tls_->take_outgoing(out_);
  return view(out_).substr(sent_);
}

void Frames::sent(std::size_t bytes) {
  sent_ += bytes;
  if (sent_ == out_.size()) {
    Bytes().swap(out_);
    sent_ = 0;
  }
}

}  // namespace netsum::control
