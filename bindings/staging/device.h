// A device with memory of its own, such as a GPU, as staging needs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace netsum::staging {

// A stream carries out what it is given in order, some time later. No call here waits for it. Calls throw Error if the
// device has failed; then nothing that was under way has a meaning any more.
class Device {
 public:
  using Stream = std::uint64_t;
  using Event = std::uint64_t;

  virtual ~Device() = default;

  // Host memory that the device reads and writes by itself (pinned).
  [[nodiscard]] virtual std::shared_ptr<std::byte> pinned(std::size_t bytes) = 0;

  [[nodiscard]] virtual Stream begin_stream() = 0;
  virtual void end_stream(Stream stream) noexcept = 0;

  virtual void copy_out(Stream stream, std::byte* host, const std::byte* device, std::size_t bytes) = 0;
  virtual void copy_in(Stream stream, std::byte* device, const std::byte* host, std::size_t bytes) = 0;

  // Happens when the stream has carried out all that it was given before.
  [[nodiscard]] virtual Event record(Stream stream) = 0;
  [[nodiscard]] virtual bool has_happened(Event event) = 0;
  virtual void wait(Stream stream, Event event) = 0;  // the stream does; no host thread
  virtual void forget(Event event) noexcept = 0;      // also of one that has not happened; who waits for it still does
};

}  // namespace netsum::staging
