// Bytes of messages. They may hold keys: memory that they give back is wiped.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "seal/packet_key.h"

namespace netsum::encoding {

template <class Value>
struct Wiping {
  using value_type = Value;
  Wiping() = default;
  template <class Other>
  Wiping(const Wiping<Other>&) {}  // NOLINT(google-explicit-constructor): as allocators are rebound
  [[nodiscard]] Value* allocate(std::size_t count) { return std::allocator<Value>().allocate(count); }
  void deallocate(Value* values, std::size_t count) {
    seal::wipe(std::as_writable_bytes(std::span(values, count)));
    std::allocator<Value>().deallocate(values, count);
  }
  bool operator==(const Wiping&) const = default;
};

using Bytes = std::vector<char, Wiping<char>>;

[[nodiscard]] inline std::string_view view(const Bytes& bytes) {
  return {bytes.data(), bytes.size()};
}

}  // namespace netsum::encoding
