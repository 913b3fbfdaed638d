// This host's network interfaces, as NCCL's network devices.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/endpoint.h"

namespace netsum::nccl {

struct Device {
  std::string name;      // of the interface
  std::string pci_path;  // in /sys; empty: it has none
  Endpoint address;      // without a port
  std::uint32_t index = 0;
  int mbit_per_second = 0;
};

// Whether NCCL_SOCKET_IFNAME's syntax chooses an interface: "eth,ib" beginnings of names, "=eth0" whole names, "^docker"
// none of these.
[[nodiscard]] bool is_chosen(std::string_view choice, std::string_view name);

// The interfaces that are up and chosen, looked up once. Throws Error: bad_argument (none is).
[[nodiscard]] std::span<const Device> devices();
[[nodiscard]] const Device& device_at(int number);  // throws Error: bad_argument

}  // namespace netsum::nccl
