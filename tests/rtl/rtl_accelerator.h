// The accelerator in RTL, as Verilator makes C++ of it: frames in, frames out.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "Vnetreduce_accelerator.h"
#include "Vnetreduce_accelerator___024root.h"
#include "protocol/netreduce/ring_config.h"

namespace netsum::testing {

class RtlAccelerator {
 public:
  // As it was made (rtl/netreduce_accelerator.sv).
  static constexpr std::uint32_t rings = 2, ranks = 4, slots = 8, packets = 16, mtu = 1024;
  static constexpr std::size_t longest_frame = 2048;
  // Counters of a ring, in the order of the state manager's.
  enum Counter : std::uint32_t {
    all,
    bytes,
    contributions,
    sums,
    results,
    repeats_answered,
    repeats_waiting,
    dropped_icrc,
    dropped_header,
    dropped_unplaced,
    dropped_old,
    dropped_early,
    dropped_misplaced,
    dropped_mismatch,
    dropped_shape
  };
  enum Common : std::uint32_t { passed, others, dropped_unreadable, dropped_long };

  RtlAccelerator() : model_(std::make_unique<Vnetreduce_accelerator>()) {
    model_->reset = 1;
    tick();
    tick();
    model_->reset = 0;
    ready_ = [](std::uint64_t) { return true; };
    model_->m_axis_tready = 1;
  }

  void add_ring(std::uint32_t number, const netreduce::RingConfig& config) {
    model_->set_ring = 1;
    model_->ring_number = static_cast<std::uint8_t>(number);
    model_->ring_id = config.ring;
    model_->ring_members = static_cast<std::uint8_t>(config.members);
    model_->ring_slots = static_cast<std::uint8_t>(2 * config.window);
    model_->ring_packets = static_cast<std::uint8_t>(config.message_packets);
    model_->ring_mtu = static_cast<std::uint16_t>(config.mtu);
    model_->ring_nrtv = !config.layout.seals;
    model_->ring_int32 = config.dtype == DType::int32;
    model_->ring_incarnation = config.incarnation;
    tick();
    model_->set_ring = 0;
    for (std::uint32_t rank = 0; rank < config.members; ++rank) {
      const netreduce::Connection& connection = config.connections[rank];
      model_->set_connection = 1;
      model_->connection_entry = static_cast<std::uint8_t>(number * ranks + rank);
      model_->connection_valid = 1;
      std::memcpy(model_->connection_source.data(), connection.source.data(), 16);
      std::memcpy(model_->connection_destination.data(), connection.destination.data(), 16);
      model_->connection_qp = connection.destination_qp;
      model_->connection_ring = static_cast<std::uint8_t>(number);
      model_->connection_rank = static_cast<std::uint8_t>(rank);
      tick();
    }
    model_->set_connection = 0;
  }

  // Called at each clock: whether the next device takes a beat, and whether the former one offers one.
  void set_ready(std::function<bool(std::uint64_t clock)> ready) { ready_ = std::move(ready); }
  void set_offers(std::function<bool(std::uint64_t clock)> offers) { offers_ = std::move(offers); }

  // Until all of it is taken.
  void give(std::span<const std::byte> frame) {
    for (std::size_t at = 0, waited = 0; at < frame.size();) {
      if (++waited > 100'000) throw std::runtime_error("the RTL takes nothing any more");
      const std::size_t part = std::min<std::size_t>(64, frame.size() - at);
      model_->s_axis_tvalid = !offers_ || offers_(clocks_);
      std::memset(model_->s_axis_tdata.data(), 0xee, 64);
      std::memcpy(model_->s_axis_tdata.data(), frame.data() + at, part);
      model_->s_axis_tkeep = part == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << part) - 1;
      model_->s_axis_tlast = at + part == frame.size();
      if (tick()) at += part;
    }
    model_->s_axis_tvalid = 0;
  }
  // Until nothing more comes out.
  void drain() {
    for (int quiet = 0; quiet < 3000; ++quiet) {
      tick();
      if (model_->m_axis_tvalid) quiet = 0;
    }
  }
  [[nodiscard]] std::vector<std::vector<std::byte>> take() { return std::exchange(sent_, {}); }
  [[nodiscard]] std::vector<std::uint64_t> take_clocks() { return std::exchange(ended_, {}); }
  // From now on: a line for each clock, of ones where a beat comes, a job is decided, the history is written, it is read,
  // sums are written, they are read, and a beat leaves.
  void trace() { traces_ = true; }
  [[nodiscard]] const std::string& traced() const { return trace_; }
  [[nodiscard]] std::uint64_t clocks() const { return clocks_; }
  [[nodiscard]] std::uint32_t counter(std::uint32_t ring, Counter counter) { return value(16 * ring + counter); }
  [[nodiscard]] std::uint32_t counter(Common counter) { return value(16 * rings + counter); }

 private:
  // One clock. Returns whether a beat was taken in.
  bool tick() {
    model_->m_axis_tready = !ready_ || ready_(clocks_);
    model_->clock = 0;
    model_->eval();
    const bool taken = model_->s_axis_tvalid && model_->s_axis_tready;
    if (model_->m_axis_tvalid && model_->m_axis_tready) {
      const auto kept = static_cast<std::size_t>(std::popcount(model_->m_axis_tkeep));
      const auto* const data = reinterpret_cast<const std::byte*>(model_->m_axis_tdata.data());
      frame_.insert(frame_.end(), data, data + kept);
      if (model_->m_axis_tlast) {
        sent_.push_back(std::exchange(frame_, {}));
        ended_.push_back(clocks_);
      }
    }
    if (traces_) {
      const auto& inside = *model_->rootp;
      for (const int on :
           {int{taken}, int{inside.netreduce_accelerator__DOT__job}, int{inside.netreduce_accelerator__DOT__h_write},
            int{inside.netreduce_accelerator__DOT__h_read}, int{inside.netreduce_accelerator__DOT__s_write},
            int{inside.netreduce_accelerator__DOT__s_read}, int{model_->m_axis_tvalid}}) {
        trace_ += on != 0 ? '1' : '0';
      }
      trace_ += '\n';
    }
    model_->clock = 1;
    model_->eval();
    ++clocks_;
    return taken;
  }
  [[nodiscard]] std::uint32_t value(std::uint32_t number) {
    model_->counter = static_cast<std::uint8_t>(number);
    model_->eval();
    return model_->counter_value;
  }

  std::unique_ptr<Vnetreduce_accelerator> model_;
  std::function<bool(std::uint64_t)> ready_, offers_;
  std::uint64_t clocks_ = 0;
  bool traces_ = false;
  std::string trace_;
  std::vector<std::byte> frame_;
  std::vector<std::vector<std::byte>> sent_;
  std::vector<std::uint64_t> ended_;
};

}  // namespace netsum::testing
