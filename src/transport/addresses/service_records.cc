#include "transport/addresses/service_records.h"

#include <arpa/nameser.h>
#include <resolv.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <tuple>

namespace netsum::transport {
namespace {

// Priority, weight and port, before the name (RFC 2782).
constexpr std::size_t numbers_bytes = 6;

std::optional<ServiceRecord> service_record(const ns_msg& message, const ns_rr& resource) {
  const std::uint8_t* const data = ns_rr_rdata(resource);
  const std::size_t length = ns_rr_rdlen(resource);
  if (length < numbers_bytes) return std::nullopt;
  std::array<char, NS_MAXDNAME> host{};
  const int name_bytes =
      dn_expand(ns_msg_base(message), ns_msg_end(message), data + numbers_bytes, host.data(), static_cast<int>(host.size()));
  if (name_bytes < 0 || numbers_bytes + static_cast<std::size_t>(name_bytes) != length) return std::nullopt;
  if (host[0] != '\0' && res_hnok(host.data()) == 0) return std::nullopt;
  const auto number = [&](std::size_t at) { return static_cast<std::uint16_t>(ns_get16(data + at)); };
  return ServiceRecord{number(0), number(2), number(4), host.data()};
}

}  // namespace

std::optional<std::vector<ServiceRecord>> service_records(std::span<const std::uint8_t> answer) {
  ns_msg message{};
  if (ns_initparse(answer.data(), static_cast<int>(answer.size()), &message) != 0) return std::nullopt;
  std::vector<ServiceRecord> records;
  for (int i = 0; i < ns_msg_count(message, ns_s_an); ++i) {
    ns_rr resource{};
    if (ns_parserr(&message, ns_s_an, i, &resource) != 0) return std::nullopt;
    if (ns_rr_type(resource) != ns_t_srv || ns_rr_class(resource) != ns_c_in) continue;
    auto record = service_record(message, resource);
    if (!record) return std::nullopt;
    if (!record->host.empty() && record->port != 0)
      records.push_back(std::move(*record));  // "." says that there is no service
  }
  std::sort(records.begin(), records.end(), [](const ServiceRecord& a, const ServiceRecord& b) {
    return std::tie(a.priority, b.weight, a.host, a.port) < std::tie(b.priority, a.weight, b.host, b.port);
  });
  return records;
}

}  // namespace netsum::transport
