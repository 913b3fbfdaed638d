// The chip profile's switch inside the kernel, as XDP (chip.bpf.c): what a daemon does with it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "service/chip_plane.h"
#include "transport/addresses/attachments.h"

namespace netsum::dataplane::xdp {

struct Lane {
  Endpoint local;  // where its packets come; the address may be unspecified. It has a socket for everything else
  int cpu = 0;     // where all of them are processed
};

struct Config {
  std::vector<std::string> interfaces;
  std::vector<Lane> lanes;
  std::shared_ptr<transport::Attachments> attachments;  // told of the interfaces
};

// Loads the program and puts it on the interfaces, until the last plane and the last of its jobs have ended, or this
// process. Throws Error: bad_argument (no such interface), refused (a privilege is missing; an interface has such a program
// already; this netsum or the kernel has no XDP).
[[nodiscard]] service::ChipPlanes open(const Config& config);

}  // namespace netsum::dataplane::xdp
