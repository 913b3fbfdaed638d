// Frames that are to leave by one port or queue. Memory for many is got with one call; frame after frame is then filled
// without another one.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace netsum::transport {

// Belongs to one thread at a time.
class FramePlaces {
 public:
  FramePlaces(const FramePlaces&) = delete;
  FramePlaces& operator=(const FramePlaces&) = delete;

  // A place for a frame of that many bytes, to be filled before it is sent; empty: there is none now, or it is too long.
  [[nodiscard]] std::span<std::byte> add(std::size_t bytes) {
    if (bytes > most_bytes_ || (filled_ == places_.size() && !get_more())) return {};
    Place& place = places_[filled_++];
    place.bytes = bytes;
    return {place.begin, bytes};
  }
  [[nodiscard]] std::size_t added() const { return filled_ - left_; }  // and not yet sent

 protected:
  struct Place {
    std::byte* begin = nullptr;
    std::size_t bytes = 0;   // of its frame
    void* buffer = nullptr;  // whatever the memory is in
  };

  explicit FramePlaces(std::size_t most_bytes) : most_bytes_(most_bytes) {}
  ~FramePlaces() = default;

  // Calls append(). False: there are none now.
  virtual bool get_more() = 0;
  void append(std::byte* begin, void* buffer = nullptr) {
    if (left_ > 0) forget_left();
    places_.push_back({begin, 0, buffer});
  }
  // Those to be sent; and the first of them were.
  [[nodiscard]] std::span<const Place> filled() const { return std::span(places_).subspan(left_, added()); }
  void leave(std::size_t count) {
    left_ += count;
    if (left_ == places_.size()) forget_left();
  }
  [[nodiscard]] std::span<const Place> empty() const { return std::span(places_).subspan(filled_); }

 private:
  void forget_left() {
    places_.erase(places_.begin(), places_.begin() + static_cast<std::ptrdiff_t>(left_));
    filled_ -= left_;
    left_ = 0;
  }

  const std::size_t most_bytes_;
  std::vector<Place> places_;          // those that have left, the filled ones, and empty ones
  std::size_t left_ = 0, filled_ = 0;  // where the filled ones begin and end
};

}  // namespace netsum::transport
