#include "shards.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <fstream>

namespace netsum::mpi {

std::uint64_t host_identity() {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  std::array<char, 64> network{};
  if (readlink("/proc/self/ns/net", network.data(), network.size() - 1) > 0) text += network.data();
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::string own_address_towards(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  const int number = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (number < 0) return "";
  sockaddr_storage storage{};
  auto* const own = reinterpret_cast<sockaddr*>(&storage);
  socklen_t length = sizeof storage;
  std::array<char, NI_MAXHOST> text{};
  // No packet is sent.
  const bool known = connect(number, found->ai_addr, found->ai_addrlen) == 0 && getsockname(number, own, &length) == 0 &&
                     getnameinfo(own, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  close(number);
  const std::string address = known ? text.data() : "";
  return address.starts_with("127.") || address == "::1" ? "" : address;
}

std::string Shards::at(const std::string& host) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Aggregator>& shard = running_[host];
  if (!shard) {
    AggregatorOptions options;
    options.listen = host.find(':') == std::string::npos ? host + ":0" : "[" + host + "]:0";
    options.threads = settings_.options.threads;
    options.tls_cert = settings_.tls_cert;
    options.tls_key = settings_.tls_key;
    options.token = token_;
    shard = std::make_unique<Aggregator>(options);
  }
  return shard->address();
}

}  // namespace netsum::mpi
