#include "sim/tcp.h"

#include <algorithm>
#include <cmath>

namespace netsum::sim {
namespace {

constexpr Duration least_timeout = std::chrono::milliseconds(200), first_timeout = std::chrono::seconds(1);  // Linux's
constexpr Duration delayed_acknowledgement = std::chrono::milliseconds(40);
constexpr std::uint64_t later_of_lost = 3;  // segments that have come behind one that is lost
constexpr double cubic_c = 0.4, cubic_beta = 0.7, cubic_alpha = 3 * (1 - cubic_beta) / (1 + cubic_beta);
constexpr double dctcp_gain = 1.0 / 16;
constexpr double least_window = 2;

double seconds_of(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

TcpWindow::Control tcp_control_of(const std::string& name) {
  return name == "cubic"   ? TcpWindow::Control::cubic
         : name == "dctcp" ? TcpWindow::Control::dctcp
                           : TcpWindow::Control::reno;
}

// ---- the window

void TcpWindow::acknowledged(std::uint64_t segments, Duration round_trip, Time now) {
  auto count = static_cast<double>(segments);
  if (slow_start()) {
    const double taken = std::min(count, threshold_ - window_);
    window_ += taken;
    count -= taken;
  }
  if (count <= 0) return;
  if (control_ == Control::cubic) return grow_cubic(segments, round_trip, now);
  window_ += count / window_;
}

void TcpWindow::grow_cubic(std::uint64_t segments, Duration round_trip, Time now) {
  if (!epoch_) {
    epoch_ = now;
    w_est_ = window_;
    k_ = w_max_ > window_ ? std::cbrt((w_max_ - window_) / cubic_c) : 0;
    origin_ = std::max(w_max_, window_);
  }
  const auto count = static_cast<double>(segments);
  const double time = seconds_of(now - *epoch_ + round_trip) - k_;
  const double target = std::clamp(origin_ + cubic_c * time * time * time, window_, 1.5 * window_);
  w_est_ += (w_est_ < prior_ ? cubic_alpha : 1) * count / window_;
  window_ = std::max(window_ + count * (target - window_) / window_, w_est_);
}

void TcpWindow::congested() {
  if (control_ == Control::cubic) {
    // Fast convergence: who gets less than before leaves some to those that are new.
    w_max_ = window_ < w_max_ ? window_ * (1 + cubic_beta) / 2 : window_;
    prior_ = window_;
    epoch_.reset();
  }
  window_ = threshold_ = std::max(least_window, window_ * (control_ == Control::cubic ? cubic_beta : 0.5));
}

void TcpWindow::marked(std::uint64_t segments, std::uint64_t of) {
  if (of == 0) return;
  alpha_ += dctcp_gain * (static_cast<double>(segments) / static_cast<double>(of) - alpha_);
  if (segments == 0) return;
  window_ = threshold_ = std::max(least_window, window_ * (1 - alpha_ / 2));
}

void TcpWindow::timed_out(double under_way) {
  if (control_ == Control::cubic) {
    w_max_ = 0;  // the curve begins at its inflection
    prior_ = window_;
    epoch_.reset();
  }
  threshold_ = std::max(least_window, under_way * (control_ == Control::cubic ? cubic_beta : 0.5));
  window_ = 1;
}

// ---- the sender

Duration TcpSender::timeout() const {
  const Duration each =
      round_trip_ == Duration::zero() ? first_timeout : round_trip_ + std::max(least_timeout, 4 * variation_);
  return each * (1U << std::min(backoff_, 6U));
}

void TcpSender::measure(Duration round_trip) {
  if (round_trip_ == Duration::zero()) {
    round_trip_ = round_trip;
    variation_ = round_trip / 2;
  } else {
    variation_ = (3 * variation_ + std::chrono::abs(round_trip_ - round_trip)) / 4;
    round_trip_ = (7 * round_trip_ + round_trip) / 8;
  }
}

void TcpSender::take_selected(const TcpFrame& frame) {
  for (const auto& [first, end] : frame.selected) {
    for (std::uint64_t number = std::max(first, first_); number < std::min(end, new_); ++number) {
      Segment& segment = at(number);
      if (segment.selected) continue;
      if (under_way(segment)) {
        --under_way_;
      } else {
        --lost_;
      }
      segment.selected = true;
      arrived_ = std::max(arrived_, segment.sent);
      selected_end_ = std::max(selected_end_, number + 1);
    }
  }
}

bool TcpSender::find_losses() {
  bool found = false;
  looked_ = std::max(looked_, first_);
  for (; looked_ + later_of_lost < selected_end_; ++looked_) {
    Segment& segment = at(looked_);
    if (segment.selected || segment.lost) continue;
    lose(looked_);
    found = true;
  }
  return found;
}

void TcpSender::lose(std::uint64_t number) {
  at(number).lost = true;
  at(number).again = false;
  --under_way_;
  ++lost_;
  resend_ = std::min(resend_, number);
}

// Paths keep the order: what was sent again is lost if something has come that was sent later.
void TcpSender::find_repeats_lost() {
  for (; !repeats_.empty(); repeats_.pop_front()) {
    const auto [number, sent] = repeats_.front();
    const bool waits = number >= first_ && at(number).again && at(number).sent == sent && !at(number).selected;
    if (waits && sent >= arrived_) return;
    if (waits) lose(number);
  }
}

void TcpSender::reduce(State state) {
  state_ = state;
  recover_ = new_;
  window_.congested();
}

void TcpSender::on_acknowledgement(const TcpFrame& frame, Time now) {
  if (frame.number > new_) return;
  const std::uint64_t before = first_;
  std::optional<Time> sent;
  for (; first_ < frame.number; ++first_) {
    const Segment& segment = segments_.front();
    if (under_way(segment)) --under_way_;
    if (segment.lost && !segment.again && !segment.selected) --lost_;
    if (!segment.again && !segment.selected) sent = segment.sent;
    if (!segment.selected) arrived_ = std::max(arrived_, segment.sent);
    segments_.pop_front();
  }
  const std::uint64_t newly = first_ - before;
  if (sent) measure(now - *sent);
  if (newly != 0) backoff_ = 0;
  take_selected(frame);
  resend_ = std::max(resend_, first_);
  const bool lost = find_losses();
  find_repeats_lost();
  // The word that the window was reduced, in the first segment behind recover_, ends the echo.
  if (state_ != State::open && first_ >= recover_ + (state_ == State::reduced ? 1 : 0)) state_ = State::open;
  if (exact_echo_) {
    window_all_ += newly;
    if (frame.echo) window_marked_ += newly;
    if (first_ >= window_end_) {
      if (state_ == State::open) window_.marked(window_marked_, window_all_);
      window_end_ = new_;
      window_all_ = window_marked_ = 0;
    }
  }
  if (lost && state_ != State::recovers && state_ != State::timed_out) {
    if (state_ == State::reduced) {
      state_ = State::recovers;  // of the same window
    } else {
      reduce(State::recovers);
    }
  } else if (frame.echo && !exact_echo_ && state_ == State::open) {
    reduce(State::reduced);
    tell_reduced_ = true;
  }
  // Nothing grows while a window is not used, or is reduced.
  if (newly != 0 && (state_ == State::open || (state_ == State::timed_out && window_.slow_start())))
    window_.acknowledged(newly, round_trip_, now);
  if (newly != 0) deadline_ = first_ == new_ ? never : now + timeout();
}

void TcpSender::on_timer(Time now) {
  if (now < deadline_) return;
  window_.timed_out(static_cast<double>(under_way_ + lost_));
  state_ = State::timed_out;
  recover_ = new_;
  under_way_ = lost_ = 0;
  for (Segment& segment : segments_) {
    segment.again = false;
    segment.lost = !segment.selected;
    if (segment.lost) ++lost_;
  }
  resend_ = first_;
  repeats_.clear();
  ++backoff_;
  deadline_ = now + timeout();
}

std::optional<TcpFrame> TcpSender::next(Time now, bool new_data) {
  if (static_cast<double>(under_way_) + 1 > window_.segments() + 1e-9) return std::nullopt;
  TcpFrame frame;
  frame.reduced = std::exchange(tell_reduced_, false);
  if (lost_ != 0) {
    while (!at(resend_).lost || at(resend_).again || at(resend_).selected) ++resend_;
    frame.number = resend_++;
    at(frame.number).again = true;
    repeats_.emplace_back(frame.number, now);
    --lost_;
    ++repeated_;
  } else {
    if (!new_data || new_ - first_ >= tcp_most_segments) return std::nullopt;
    frame.number = new_++;
    segments_.emplace_back();
  }
  at(frame.number).sent = now;
  ++under_way_;
  if (deadline_ == never) deadline_ = now + timeout();
  return frame;
}

// ---- the receiver

std::optional<TcpFrame> TcpReceiver::on_segment(const TcpFrame& frame, bool marked, Time now) {
  const bool in_order = frame.number == next_ && later_.empty();
  // RFC 8257: an echo's change is told at once, about what came before it.
  std::optional<TcpFrame> change;
  if (exact_echo_ && marked != echo_ && unacknowledged_ != 0) change = acknowledge();
  if (exact_echo_) {
    echo_ = marked;
  } else {
    if (frame.reduced) echo_ = false;
    echo_ |= marked;
  }
  if (frame.number >= next_) {
    auto [at, first] = later_.emplace(frame.number, frame.number + 1);
    if (first && at != later_.begin()) {
      const auto before = std::prev(at);
      if (before->second >= frame.number) {
        before->second = std::max(before->second, frame.number + 1);
        later_.erase(at);
        at = before;
      }
    }
    if (const auto behind = std::next(at); behind != later_.end() && behind->first <= at->second) {
      at->second = std::max(at->second, behind->second);
      later_.erase(behind);
    }
    if (later_.begin()->first == next_) {
      next_ = later_.begin()->second;
      later_.erase(later_.begin());
    }
  }
  last_ = frame.number;
  ++unacknowledged_;
  if (change) {
    deadline_ = now + delayed_acknowledgement;
    return change;
  }
  if (in_order && unacknowledged_ < 2) {
    deadline_ = now + delayed_acknowledgement;
    return std::nullopt;
  }
  return acknowledge();
}

std::optional<TcpFrame> TcpReceiver::on_timer(Time now) {
  if (now < deadline_) return std::nullopt;
  return acknowledge();
}

TcpFrame TcpReceiver::acknowledge() {
  TcpFrame frame;
  frame.acknowledges = true;
  frame.number = next_;
  frame.echo = echo_;
  // The newest first, and then the highest.
  std::size_t count = 0;
  auto newest = later_.upper_bound(last_);
  if (newest != later_.begin() && std::prev(newest)->second > last_) frame.selected[count++] = *std::prev(newest);
  for (auto range = later_.rbegin(); range != later_.rend() && count < frame.selected.size(); ++range) {
    if (range->first <= last_ && last_ < range->second) continue;
    frame.selected[count++] = *range;
  }
  unacknowledged_ = 0;
  deadline_ = never;
  return frame;
}

}  // namespace netsum::sim
