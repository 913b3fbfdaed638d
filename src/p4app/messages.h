// What clients of p4lang/p4app-switchML ask their control service for, field by field. Both directions are protocol buffers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace netsum::p4app {

// A worker's or the switch's.
struct Station {
  std::uint64_t mac = 0;   // the first byte on the wire is the most significant one
  std::uint32_t ipv4 = 0;  // likewise
};

struct UdpSessionRequest {
  std::uint64_t session = 0;
  std::uint32_t rank = 0, workers = 0;
  Station station;
  std::uint64_t packet_size = 0;  // as in packets
};
struct UdpSessionResponse {
  std::uint64_t session = 0;
  Station station;
};
struct BarrierRequest {
  std::uint32_t workers = 0;
};
struct BarrierResponse {};
struct BroadcastRequest {
  std::uint64_t value = 0;
  std::uint32_t rank = 0, workers = 0, root = 0;
};
struct BroadcastResponse {
  std::uint64_t value = 0;
};

inline constexpr std::string_view udp_session_path = "/switchml_proto.Session/UdpSession",
                                  rdma_session_path = "/switchml_proto.Session/RdmaSession",
                                  barrier_path = "/switchml_proto.Sync/Barrier",
                                  broadcast_path = "/switchml_proto.Sync/Broadcast";
inline constexpr std::uint16_t control_port = 50099;

// Of each of the structures above. None: the bytes are no such message.
template <class Message>
[[nodiscard]] std::string to_bytes(Message message);
template <class Message>
[[nodiscard]] std::optional<Message> from_bytes(std::string_view bytes);

}  // namespace netsum::p4app
