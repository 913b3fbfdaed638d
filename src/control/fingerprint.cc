#include "control/fingerprint.h"

#include <openssl/evp.h>

#include <array>
#include <cstdio>

#include "control/codec.h"
#include "control/frames.h"
#include "netsum/error.h"
#include "wire/samples.h"

namespace netsum::control {
namespace {

template <class Message>
std::string layout(Kind kind, const char* name) {
  return std::to_string(static_cast<unsigned>(kind)) + " " + name + ": " + Layout::of<Message>() + "\n";
}

std::string digest_of(const std::string& layouts, const std::vector<std::byte>& packets) {
  std::string all = layouts;
  all.append(reinterpret_cast<const char*>(packets.data()), packets.size());
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  if (EVP_Digest(all.data(), all.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1) {
    throw Error(ErrorCode::internal, "OpenSSL cannot compute SHA-256");
  }
  std::string text;
  for (std::size_t i = 0; i < 8; ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", digest[i]);
    text += two;
  }
  return text;
}

}  // namespace

const std::string& version() {
  static const std::string text = NETSUM_VERSION;
  return text;
}

const std::string& fingerprint() {
  static const std::string text = digest_of(layouts(), wire::samples());
  return text;
}

std::string layouts() {
  return layout<HelloRequest>(Kind::hello, "hello") + layout<Hello>(Kind::answer, "hello") +
         layout<Join>(Kind::join, "join") + layout<session::Admission>(Kind::answer, "join") +
         layout<Beat>(Kind::heartbeat, "heartbeat") + layout<session::HeartbeatReply>(Kind::answer, "heartbeat") +
         layout<Life>(Kind::leave, "leave") + layout<StatusRequest>(Kind::status, "status") +
         layout<StatusReply>(Kind::answer, "status") + layout<session::Installation>(Kind::install, "install") +
         layout<InstallReply>(Kind::answer, "install") +
         layout<session::TreeInstallation>(Kind::install_ring, "install_ring") +
         layout<RingView>(Kind::answer, "install_ring") + layout<Uninstall>(Kind::uninstall, "uninstall") +
         layout<session::NamedJob>(Kind::end, "end") + layout<Drain>(Kind::drain, "drain") +
         layout<session::NamedJob>(Kind::explain, "explain") + layout<FlightRecord>(Kind::answer, "explain") +
         layout<Failure>(Kind::failure, "failure");
}

}  // namespace netsum::control
