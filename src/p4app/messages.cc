#include "p4app/messages.h"

#include "encoding/codec.h"

namespace netsum::p4app {

template <class Archive>
void fields(Archive& a, UdpSessionRequest& m) {
  a.number(1, "session_id", m.session);
  a.number(2, "rank", m.rank);
  a.number(3, "num_workers", m.workers);
  a.number(4, "mac", m.station.mac);
  a.number(5, "ipv4", m.station.ipv4);
  a.number(7, "packet_size", m.packet_size);
}
template <class Archive>
void fields(Archive& a, UdpSessionResponse& m) {
  a.number(1, "session_id", m.session);
  a.number(2, "mac", m.station.mac);
  a.number(3, "ipv4", m.station.ipv4);
}
template <class Archive>
void fields(Archive& a, BarrierRequest& m) {
  a.number(1, "num_workers", m.workers);
}
template <class Archive>
void fields(Archive&, BarrierResponse&) {}
template <class Archive>
void fields(Archive& a, BroadcastRequest& m) {
  a.number(1, "value", m.value);
  a.number(2, "rank", m.rank);
  a.number(3, "num_workers", m.workers);
  a.number(4, "root", m.root);
}
template <class Archive>
void fields(Archive& a, BroadcastResponse& m) {
  a.number(1, "value", m.value);
}

template <class Message>
std::string to_bytes(Message message) {
  encoding::Bytes bytes;
  encoding::Writer writer(bytes);
  fields(writer, message);
  return std::string(encoding::view(bytes));
}

template <class Message>
std::optional<Message> from_bytes(std::string_view bytes) {
  Message message;
  try {
    encoding::Reader::read({bytes.data(), bytes.size()}, message);
  } catch (const encoding::Nonsense&) {
    return std::nullopt;
  } catch (const protozero::exception&) {
    return std::nullopt;
  }
  return message;
}

#define NETSUM_P4APP_MESSAGE(Message)              \
  template std::string to_bytes<Message>(Message); \
  template std::optional<Message> from_bytes<Message>(std::string_view);
NETSUM_P4APP_MESSAGE(UdpSessionRequest)
NETSUM_P4APP_MESSAGE(UdpSessionResponse)
NETSUM_P4APP_MESSAGE(BarrierRequest)
NETSUM_P4APP_MESSAGE(BarrierResponse)
NETSUM_P4APP_MESSAGE(BroadcastRequest)
NETSUM_P4APP_MESSAGE(BroadcastResponse)

}  // namespace netsum::p4app
