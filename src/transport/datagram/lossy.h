// Any transport, with datagrams dropped at the receiver: after segment trains are split and before parsing.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/mix.h"
#include "transport/datagram/transport.h"

namespace netsum::transport {

class Lossy final : public Transport {
 public:
  // (seed, stream, n) alone decides whether the n-th received datagram is dropped.
  Lossy(std::unique_ptr<Transport> inner, double loss, std::uint64_t seed, std::uint64_t stream)
      : inner_(std::move(inner)),
        threshold_(static_cast<std::uint64_t>(std::ldexp(loss, 53))),
        key_(mix(seed) ^ mix(stream ^ 0x5851f42d4c957f2dULL)) {}

  std::span<const RxView> receive() override {
    std::span<const RxView> all;
    kept_.clear();
    // Empty means "nothing to receive", so a batch dropped as a whole must not look like it and end the caller's loop.
    do {
      all = inner_->receive();
      for (const RxView& view : all) {
        if (mix(key_ + number_++ * 0x9e3779b97f4a7c15ULL) >> 11 < threshold_) {
          ++dropped_;
        } else {
          kept_.push_back(view);
        }
      }
    } while (kept_.empty() && !all.empty());
    return kept_;
  }

  Sink& sink() override { return inner_->sink(); }
  int descriptor() const override { return inner_->descriptor(); }
  Endpoint local() const override { return inner_->local(); }
  Counters counters() const override {
    Counters counters = inner_->counters();
    counters.dropped_injected = dropped_;
    return counters;
  }
  std::uint64_t queued_bytes() const override { return inner_->queued_bytes(); }
  std::uint64_t receive_buffer_bytes() const override { return inner_->receive_buffer_bytes(); }
  void send_from(const Endpoint& to, const Endpoint& own) override { inner_->send_from(to, own); }
  bool set_filter(std::span<const sock_filter> program) override { return inner_->set_filter(program); }

 private:
  std::unique_ptr<Transport> inner_;
  std::uint64_t threshold_, key_, number_ = 0, dropped_ = 0;
  std::vector<RxView> kept_;
};

}  // namespace netsum::transport
