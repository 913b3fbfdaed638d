#include "sim/trace.h"

#include <cstdio>
#include <vector>

#include "base/bytes.h"

namespace netsum::sim {
namespace {

constexpr std::uint32_t pcap_nanoseconds = 0xa1b23c4d;
constexpr std::uint32_t link_type_raw_ip = 101;
constexpr std::size_t ip_header = 20, udp_header = 8;

template <class T>
void put_le(std::vector<std::byte>& out, T value) {
  const std::size_t at = out.size();
  out.resize(at + sizeof(T));
  store_le(out.data() + at, value);
}

void put_be16(std::vector<std::byte>& out, std::size_t value) {
  out.push_back(static_cast<std::byte>(value >> 8 & 0xff));
  out.push_back(static_cast<std::byte>(value & 0xff));
}

void put_ipv4(std::vector<std::byte>& out, const Endpoint& endpoint) {
  for (std::size_t i = 12; i < 16; ++i) out.push_back(static_cast<std::byte>(endpoint.address[i]));
}

std::size_t internet_checksum(std::span<const std::byte> bytes) {
  std::size_t sum = 0;
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
    sum += std::to_integer<std::size_t>(bytes[i]) << 8 | std::to_integer<std::size_t>(bytes[i + 1]);
  }
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return ~sum & 0xffff;
}

void write(std::ostream& out, const std::vector<std::byte>& bytes) {
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

Trace::Trace(std::ostream* text, std::ostream* pcap) : text_(text), pcap_(pcap) {
  if (pcap_ == nullptr) return;
  std::vector<std::byte> header;
  put_le(header, pcap_nanoseconds);
  put_le<std::uint16_t>(header, 2);  // version 2.4
  put_le<std::uint16_t>(header, 4);
  put_le<std::uint64_t>(header, 0);  // time zone, accuracy
  put_le<std::uint32_t>(header, 65535);
  put_le(header, link_type_raw_ip);
  write(*pcap_, header);
}

void Trace::line(Time now, const std::string& what) {
  if (text_ == nullptr) return;
  char stamp[32];
  std::snprintf(stamp, sizeof stamp, "%14.6f  ", std::chrono::duration<double>(now.time_since_epoch()).count());
  *text_ << stamp << what << '\n';
}

void Trace::datagram(Time now, const Endpoint& from, const Endpoint& to, std::span<const std::byte> bytes, bool marked) {
  if (pcap_ == nullptr) return;
  constexpr std::size_t ecn_capable = 2, ecn_marked = 3;
  std::vector<std::byte> ip;
  put_be16(ip, 0x4500 | (marked ? ecn_marked : ecn_capable));
  put_be16(ip, ip_header + udp_header + bytes.size());
  put_be16(ip, 0);
  put_be16(ip, 0x4000);  // don't fragment
  put_be16(ip, 64 << 8 | 17);
  put_be16(ip, 0);
  put_ipv4(ip, from);
  put_ipv4(ip, to);
  const std::size_t checksum = internet_checksum(ip);
  ip[10] = static_cast<std::byte>(checksum >> 8);
  ip[11] = static_cast<std::byte>(checksum & 0xff);
  put_be16(ip, from.port);
  put_be16(ip, to.port);
  put_be16(ip, udp_header + bytes.size());
  put_be16(ip, 0);  // no checksum
  ip.insert(ip.end(), bytes.begin(), bytes.end());

  const auto nanoseconds = static_cast<std::uint64_t>(now.time_since_epoch().count());
  std::vector<std::byte> record;
  put_le(record, static_cast<std::uint32_t>(nanoseconds / 1'000'000'000));
  put_le(record, static_cast<std::uint32_t>(nanoseconds % 1'000'000'000));
  put_le(record, static_cast<std::uint32_t>(ip.size()));
  put_le(record, static_cast<std::uint32_t>(ip.size()));
  write(*pcap_, record);
  write(*pcap_, ip);
}

std::string to_string(const Endpoint& endpoint) {
  const auto& a = endpoint.address;
  return std::to_string(a[12]) + "." + std::to_string(a[13]) + "." + std::to_string(a[14]) + "." + std::to_string(a[15]) +
         ":" + std::to_string(endpoint.port);
}

}  // namespace netsum::sim
