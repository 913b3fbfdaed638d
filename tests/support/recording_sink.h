// A sink that keeps what is sent.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/packet_io.h"

namespace netsum::testing {

struct Datagram {
  Endpoint from, to;
  std::vector<std::byte> bytes;
  bool multicast = false;  // how it was handed over, which does not show where it arrives

  bool operator==(const Datagram& other) const {
    return std::tie(from, to, bytes) == std::tie(other.from, other.to, other.bytes);
  }
};

// Reads references at flush() and not before, as the contract of Sink allows; whoever looks at what was sent flushes.
class RecordingSink final : public Sink {
 public:
  // Called at each datagram() and multicast(), with where to.
  using Look = std::function<void(std::span<const Endpoint> to, bool multicast)>;

  explicit RecordingSink(Look look = {}) : look_(std::move(look)) {}
  // Datagrams come from `self`, and are put behind what others have sent.
  RecordingSink(const Endpoint& self, std::vector<Datagram>& sent) : self_(self), sent_(sent) {}
  RecordingSink(const RecordingSink&) = delete;
  RecordingSink& operator=(const RecordingSink&) = delete;
  ~RecordingSink() = default;

  std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override {
    if (look_) look_({&to, 1}, false);
    // No zeros: a byte that nobody writes shows.
    return pending_.emplace_back(Pending{{self_, to, std::vector<std::byte>(bytes, std::byte{0xaa})}, {}, {}, 0}).own.bytes;
  }
  Around around(const Endpoint& to, std::size_t head, std::span<const std::byte> body, std::size_t tail) override {
    const std::span<std::byte> own = datagram(to, head + tail);
    pending_.back().referenced = body;
    pending_.back().at = head;
    return {own.first(head), own.last(tail)};
  }
  void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override {
    if (look_) look_(to, true);
    pending_.push_back({{self_, {}, {}, true}, packet, to, 0});
  }
  void flush() override {
    for (Pending& item : pending_) {
      if (!item.own.multicast) {
        std::vector<std::byte>& bytes = item.own.bytes;
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(item.at), item.referenced.begin(), item.referenced.end());
        sent_.push_back(std::move(item.own));
      }
      for (const Endpoint& to : item.to) {
        sent_.push_back({self_, to, {item.referenced.begin(), item.referenced.end()}, true});
      }
    }
    pending_.clear();
  }

  // Since the last take() or clear(), in order.
  [[nodiscard]] std::vector<Datagram>& sent() {
    flush();
    return sent_;
  }
  [[nodiscard]] std::vector<Datagram> take() { return std::exchange(sent(), {}); }
  void clear() {
    pending_.clear();
    sent_.clear();
  }

 private:
  struct Pending {  // the bytes that were given out stay where they are when the list grows
    Datagram own;
    std::span<const std::byte> referenced;
    std::span<const Endpoint> to;
    std::size_t at = 0;  // in `own`, where what is referenced belongs
  };
  Look look_;
  Endpoint self_;
  std::vector<Pending> pending_;
  std::vector<Datagram> own_sent_;
  std::vector<Datagram>& sent_ = own_sent_;
};

}  // namespace netsum::testing
