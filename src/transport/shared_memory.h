// Memory that one process writes and others read: a memfd whose seals hold that, whoever has its descriptor.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "transport/socket.h"

namespace netsum::transport {

// Of this process. Nobody else can ever map it to write, or change its length.
class OwnMemory {
 public:
  // Zeros. `reserved`: all of it is there at once, so that no later write finds none left. Throws Error: bad_argument
  // (too many bytes), internal.
  OwnMemory(const std::string& name, std::size_t bytes, bool reserved = false);
  ~OwnMemory();
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  [[nodiscard]] const std::shared_ptr<Descriptor>& descriptor() const { return descriptor_; }
  void close_descriptor() { descriptor_.reset(); }  // for memory that everybody has mapped

 private:
  std::span<std::byte> bytes_;
  std::shared_ptr<Descriptor> descriptor_;
};

// Another process's, to read. It cannot be made shorter: reading it ends in no SIGBUS.
class PeerMemory {
 public:
  // Throws Error: refused (not sealed, or not of at least `least` bytes), internal.
  PeerMemory(const Descriptor& descriptor, std::size_t least);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace netsum::transport
