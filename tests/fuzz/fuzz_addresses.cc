// Addresses as people write them and as sockets hold them. Names are not looked up: getaddrinfo is held to numbers.
#include <fuzzer/FuzzedDataProvider.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cstring>
#include <span>

#include "fuzz/harness.h"
#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/service_records.h"
#include "transport/datagram/multicast.h"

extern "C" int __real_getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** list);
extern "C" int __wrap_getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** list) {
  addrinfo numeric = *hints;
  numeric.ai_flags |= AI_NUMERICHOST;
  return __real_getaddrinfo(name, service, &numeric, list);
}

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

void text(const std::string& address) {
  Endpoint endpoint;
  try {
    endpoint = transport::resolve(address);
  } catch (const Error& error) {
    fuzz::check(error.code() == ErrorCode::bad_argument || error.code() == ErrorCode::unreachable, "an error of an address");
    return;
  }
  fuzz::check(address.find('\0') == std::string::npos, "an address has no end before its end");
  const std::string written = transport::to_string(endpoint);
  fuzz::check(transport::resolve(written) == endpoint, "an address is read as it is written");
}

void groups(const std::string& range) {
  try {
    const transport::GroupRange read(range);
    const Endpoint group = read.group_of("a job", 0);
    fuzz::check(transport::is_ipv4(group) && group.address[12] >> 4 == 14, "a job's group is one");
    fuzz::check(group.port == read.port(), "the first lane has the range's port");
  } catch (const Error& error) {
    fuzz::check(error.code() == ErrorCode::bad_argument, "an error of a range of groups");
  }
}

void socket_address(FuzzedDataProvider& input) {
  sockaddr_storage storage{};
  input.ConsumeData(&storage, sizeof storage);
  const sa_family_t family = input.PickValueInArray<sa_family_t>({AF_INET, AF_INET6, AF_UNIX});
  storage.ss_family = family;
  const Endpoint endpoint = transport::endpoint_of(storage);
  if (family == AF_UNIX) {
    fuzz::check(endpoint == Endpoint{}, "another family's address is none");
    return;
  }
  if (transport::is_ipv4(endpoint) && endpoint.scope != 0) return;  // no kernel gives an IPv4 address a scope
  sockaddr_storage again{};
  for (const bool ipv6 : {false, true}) {
    const socklen_t length = transport::to_sockaddr(endpoint, ipv6, again);
    if (length == 0) {
      fuzz::check(!ipv6 && !transport::is_ipv4(endpoint), "only an IPv4 socket cannot reach all");
      continue;
    }
    const Endpoint back = transport::endpoint_of(again);
    fuzz::check(back == endpoint || (!ipv6 && transport::is_unspecified(endpoint) && back.port == endpoint.port),
                "a socket's address means the same again");
  }
  text(transport::to_string(endpoint));
}

// What DNS answers.
void services(std::span<const std::uint8_t> answer) {
  const auto records = transport::service_records(answer);
  if (!records) return;
  for (std::size_t i = 0; i < records->size(); ++i) {
    const transport::ServiceRecord& record = (*records)[i];
    fuzz::check(record.port != 0 && !record.host.empty() && record.host.size() <= 255, "a record names a port of a host");
    fuzz::check(record.host.find_first_of(":,/@ ") == std::string::npos, "a host is nothing else");
    fuzz::check(i == 0 || (*records)[i - 1].priority <= record.priority, "records are in order");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  FuzzedDataProvider input(data + 1, size - 1);
  if (data[0] % 4 == 0) {
    socket_address(input);
    return 0;
  }
  services(std::span(data + 1, size - 1));
  const std::string words = input.ConsumeRemainingBytesAsString();
  groups(words);
  text(words);
  return 0;
}
