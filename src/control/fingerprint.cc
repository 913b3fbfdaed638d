#include "control/fingerprint.h"

#include <span>
#include <vector>

#include "control/digest.h"
#include "control/frames.h"
#include "control/messages.h"
#include "encoding/codec.h"
#include "jobs/layouts.h"
#include "netsum/types.h"
#include "netsum/version.h"
#include "seal/sealer.h"
#include "wire/samples.h"

namespace netsum::control {
namespace {

template <class Message>
std::string layout(Kind kind, const char* name) {
  return std::to_string(static_cast<unsigned>(kind)) + " " + name + ": " + encoding::Layout::of<Message>() + "\n";
}

// Zeros with a seal, as a key of zeros makes it.
std::vector<std::byte> sealed(PacketSecurity security) {
  std::vector<std::byte> packet(3000);
  seal::Sealer(security, seal::PacketKey(seal::PacketKey::Bytes{}), 0).seal(packet, 20);
  return packet;
}

std::string digest_of(const std::string& layouts, const std::vector<std::vector<std::byte>>& packets) {
  std::string all = layouts;
  for (const auto& each : packets) all.append(reinterpret_cast<const char*>(each.data()), each.size());
  const Digest digest = sha256(all);
  return hexadecimal(std::span(digest).first<8>());
}

}  // namespace

const std::string& version() {
  static const std::string text = NETSUM_VERSION;
  return text;
}

const std::string& fingerprint() {
  static const std::string text =
      digest_of(layouts(), {wire::samples(), sealed(PacketSecurity::tag), sealed(PacketSecurity::encrypt)});
  return text;
}

std::string layouts() {
  return layout<HelloRequest>(Kind::hello, "hello") + layout<Hello>(Kind::answer, "hello") +
         layout<Join>(Kind::join, "join") + layout<session::Admission>(Kind::answer, "join") +
         layout<Beat>(Kind::heartbeat, "heartbeat") + layout<session::HeartbeatReply>(Kind::answer, "heartbeat") +
         layout<Life>(Kind::leave, "leave") + layout<StatusRequest>(Kind::status, "status") +
         layout<StatusReply>(Kind::answer, "status") + layout<session::SwitchMessage>(Kind::install, "install") +
         layout<InstallReply>(Kind::answer, "install") + layout<Uninstall>(Kind::uninstall, "uninstall") +
         layout<session::NamedJob>(Kind::end, "end") + layout<Drain>(Kind::drain, "drain") +
         layout<session::NamedJob>(Kind::explain, "explain") + layout<FlightRecord>(Kind::answer, "explain") +
         layout<Failure>(Kind::failure, "failure") + jobs::layouts();
}

}  // namespace netsum::control
