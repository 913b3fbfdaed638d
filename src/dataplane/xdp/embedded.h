// chip.bpf.c, compiled: an ELF file inside this library.
#pragma once

#include <cstddef>
#include <span>

namespace netsum::dataplane::xdp {

[[nodiscard]] std::span<const std::byte> embedded_program();

}  // namespace netsum::dataplane::xdp
