// Memory of several processes: memfds, whose seals hold what is said here, whoever has a descriptor. Nobody can change the
// length of any: reading and writing it ends in no SIGBUS.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "transport/fork.h"
#include "transport/socket.h"

namespace netsum::transport {

// A descriptor's memory, to read and to write, for this process alone: in a child of fork() there is at the same place a
// copy of it, which the child makes as it writes, and which reaches nobody.
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
  void* for_child_ = nullptr;  // the same memory, not shared and not touched: a child moves it to where the first was
};

// Of this process. Nobody else can ever map it to write.
class OwnMemory {
 public:
  // Zeros. `reserved`: all of it is there at once, so that no later write finds none left. Throws Error: bad_argument
  // (too many bytes), internal.
  OwnMemory(const std::string& name, std::size_t bytes, bool reserved = false);

  [[nodiscard]] std::span<std::byte> bytes() const { return mapping_.bytes(); }
  [[nodiscard]] const std::shared_ptr<Descriptor>& descriptor() const { return descriptor_; }
  void close_descriptor() { descriptor_.reset(); }  // for memory that everybody has mapped

 private:
  std::shared_ptr<Descriptor> descriptor_;
  Mapping mapping_;
};

// Another process's, to read.
class PeerMemory {
 public:
  // Throws Error: refused (not sealed, or not of at least `least` bytes), internal.
  PeerMemory(const Descriptor& descriptor, std::size_t least);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Whether the constructor would take it, for who passes it on.
  [[nodiscard]] static bool is_readable(const Descriptor& descriptor, std::size_t least);

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

// Of whoever has its descriptor, who may all write it.
class CommonMemory {
 public:
  // Made here: zeros, all of them there at once. Throws Error: bad_argument (too many bytes), internal.
  CommonMemory(const std::string& name, std::size_t bytes);
  // Made by another process. Throws Error: refused (not sealed, or of another length), internal.
  CommonMemory(std::shared_ptr<Descriptor> made, std::size_t bytes);

  [[nodiscard]] std::span<std::byte> bytes() const { return mapping_.bytes(); }
  [[nodiscard]] const std::shared_ptr<Descriptor>& descriptor() const { return descriptor_; }
  // Opened once more: locks on it end with it, and with this process, whoever else has the memory. (A mapping would keep
  // them, also in a child.) Throws Error: internal.
  [[nodiscard]] std::shared_ptr<Descriptor> opened_again() const;

 private:
  std::shared_ptr<Descriptor> descriptor_;
  Mapping mapping_;
};

}  // namespace netsum::transport
