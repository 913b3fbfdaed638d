// Memory shared by several processes: memfds, whose seals enforce these rules on every holder of a descriptor. The length is
// fixed, so access never raises SIGBUS.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "transport/system/fork.h"
#include "transport/system/socket.h"

namespace netsum::transport {

// A descriptor's memory, mapped to read and write by this process alone. A child of fork() has a private copy-on-write copy
// at the same address.
class Mapping final : NotForChildren {
 public:
  // Throws Error: bad_argument (too many bytes).
  Mapping(const Descriptor& descriptor, std::size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  void in_child() noexcept override;

  std::span<std::byte> bytes_;
  void* for_child_ = nullptr;  // the same memory, private and untouched: a child moves it to the first's address
};

// This process's memory. No other process can map it writable.
class OwnMemory {
 public:
  // Zeroed. `reserved`: allocated at once, so that no later write runs out of memory. Throws Error: bad_argument (too many
  // bytes), internal.
  OwnMemory(const std::string& name, std::size_t bytes, bool reserved = false);

  [[nodiscard]] std::span<std::byte> bytes() const { return mapping_.bytes(); }
  [[nodiscard]] const std::shared_ptr<Descriptor>& descriptor() const { return descriptor_; }
  void close_descriptor() { descriptor_.reset(); }  // once all ranks have mapped the memory

 private:
  std::shared_ptr<Descriptor> descriptor_;
  Mapping mapping_;
};

// Another process's memory, read-only.
class PeerMemory {
 public:
  // Throws Error: refused (not sealed, or shorter than `least` bytes), internal.
  PeerMemory(const Descriptor& descriptor, std::size_t least);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Whether the constructor would accept the descriptor, for a process that passes it on.
  [[nodiscard]] static bool is_readable(const Descriptor& descriptor, std::size_t least);

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

// Memory that every holder of the descriptor may write.
class CommonMemory {
 public:
  // Makes new memory: zeroed, and allocated at once. Throws Error: bad_argument (too many bytes), internal.
  CommonMemory(const std::string& name, std::size_t bytes);
  // Maps another process's. Throws Error: refused (not sealed, or of another length), internal.
  CommonMemory(std::shared_ptr<Descriptor> made, std::size_t bytes);

  [[nodiscard]] std::span<std::byte> bytes() const { return mapping_.bytes(); }
  [[nodiscard]] const std::shared_ptr<Descriptor>& descriptor() const { return descriptor_; }
  // A second open file description: locks on it end when it is closed or this process ends, whichever processes hold the
  // memory. (A mapping would keep locks, also in a child.) Throws Error: internal.
  [[nodiscard]] std::shared_ptr<Descriptor> opened_again() const;

 private:
  std::shared_ptr<Descriptor> descriptor_;
  Mapping mapping_;
};

}  // namespace netsum::transport
