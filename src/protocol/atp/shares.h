// How whole operations are dealt to lanes (ATP §4): each tensor goes to the lane with the least work so far.
//
// "So far" counts all work ever assigned, not work in flight: the ranks agree on the first without communication, and never
// on the second. Long tensors are cut first, as in BytePS (§5.1), else one lane would carry a model's largest layer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace netsum::atp {

struct Piece {
  std::uint64_t offset = 0, elements = 0;  // int32 words on the wire; a barrier has one empty piece
};

class Shares {
 public:
  static constexpr std::uint64_t piece_elements = 1 << 20;  // 4 MB (§5.1)

  Shares(std::uint32_t lane, std::uint32_t lanes) : lane_(lane), assigned_(lanes) {}

  // Deals the next operation and writes this lane's pieces of it. Returns how many pieces all lanes have.
  std::uint64_t deal(std::uint64_t wire_elements, std::vector<Piece>& pieces) {
    pieces.clear();
    std::uint64_t count = 0;
    std::uint64_t offset = 0;
    do {
      const std::uint64_t elements = std::min(piece_elements, wire_elements - offset);
      const auto least = std::min_element(assigned_.begin(), assigned_.end());
      if (static_cast<std::uint32_t>(least - assigned_.begin()) == lane_) pieces.push_back({offset, elements});
      *least += std::max<std::uint64_t>(elements, 1);
      offset += elements;
      ++count;
    } while (offset < wire_elements);
    return count;
  }

 private:
  std::uint32_t lane_;
  std::vector<std::uint64_t> assigned_;  // elements, by lane
};

}  // namespace netsum::atp
