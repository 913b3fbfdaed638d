// A TCP connection that sends as much as it can, in segments of equal length: enough of it for the shares that other traffic
// leaves (RFC 5681, 6298, 6675, 8985, 3168, 9438 and 8257). A state machine: its owner carries the frames and knows the
// time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/time.h"

namespace netsum::sim {

inline constexpr std::uint32_t tcp_segment_bytes = 1448;                           // of data
inline constexpr std::uint32_t tcp_header_bytes = 66;                              // Ethernet, IPv4, TCP with time stamps
inline constexpr std::uint64_t tcp_most_segments = (4 << 20) / tcp_segment_bytes;  // that the receiver has room for

// Segments are numbered from 0.
struct TcpFrame {
  bool acknowledges = false;                                          // else it is a segment
  std::uint64_t number = 0;                                           // the segment's; or the first one that has not come
  bool echo = false;                                                  // an acknowledgement: congestion was experienced
  bool reduced = false;                                               // a segment: the sender heard of it
  std::array<std::pair<std::uint64_t, std::uint64_t>, 3> selected{};  // [first, end) of what has come behind a gap

  [[nodiscard]] std::uint32_t bytes() const { return tcp_header_bytes + (acknowledges ? 0 : tcp_segment_bytes); }
};

// How many segments may be under way.
class TcpWindow {
 public:
  enum class Control : std::uint8_t { reno, cubic, dctcp };
  explicit TcpWindow(Control control) : control_(control) {}

  [[nodiscard]] double segments() const { return window_; }
  [[nodiscard]] bool slow_start() const { return window_ < threshold_; }
  void acknowledged(std::uint64_t segments, Duration round_trip, Time now);
  void congested();                                       // once a round trip at most
  void marked(std::uint64_t segments, std::uint64_t of);  // dctcp: of a window's
  void timed_out(double under_way);

 private:
  void grow_cubic(std::uint64_t segments, Duration round_trip, Time now);

  const Control control_;
  double window_ = 10, threshold_ = 1e18;
  // Cubic, RFC 9438's names.
  double w_max_ = 0, prior_ = 0, w_est_ = 0, k_ = 0, origin_ = 0;
  std::optional<Time> epoch_;
  double alpha_ = 1;  // dctcp: how much was marked, smoothed
};

class TcpSender {
 public:
  explicit TcpSender(TcpWindow::Control control) : exact_echo_(control == TcpWindow::Control::dctcp), window_(control) {}

  void on_acknowledgement(const TcpFrame& frame, Time now);
  void on_timer(Time now);
  [[nodiscard]] Time next_timeout() const { return deadline_; }
  // What may be sent now.
  [[nodiscard]] std::optional<TcpFrame> next(Time now, bool new_data);

  [[nodiscard]] double window() const { return window_.segments(); }
  [[nodiscard]] std::uint64_t repeated() const { return repeated_; }

 private:
  struct Segment {
    Time sent{};
    bool selected = false, lost = false, again = false;  // has come; is lost; was sent again since
  };
  enum class State : std::uint8_t { open, reduced, recovers, timed_out };

  [[nodiscard]] bool under_way(const Segment& segment) const {
    return !segment.selected && (!segment.lost || segment.again);
  }
  [[nodiscard]] Segment& at(std::uint64_t number) { return segments_[number - first_]; }
  void take_selected(const TcpFrame& frame);
  [[nodiscard]] bool find_losses();
  void find_repeats_lost();
  void lose(std::uint64_t number);
  void measure(Duration round_trip);
  void reduce(State state);
  [[nodiscard]] Duration timeout() const;

  const bool exact_echo_;
  TcpWindow window_;
  State state_ = State::open;
  std::uint64_t recover_ = 0;                           // what was sent when the state began
  std::uint64_t first_ = 0, new_ = 0;                   // the first without an acknowledgement, the next new one
  std::deque<Segment> segments_;                        // [first_, new_)
  std::uint64_t under_way_ = 0, lost_ = 0;              // lost: and not sent again
  std::uint64_t selected_end_ = 0;                      // behind the last one that has come
  std::uint64_t looked_ = 0, resend_ = 0;               // nothing before needs a look for losses, or is to be sent again
  std::deque<std::pair<std::uint64_t, Time>> repeats_;  // in the order in which they were sent
  Time arrived_{};                                      // when the newest that has come was sent
  bool tell_reduced_ = false;
  std::uint64_t window_end_ = 0, window_all_ = 0, window_marked_ = 0;  // dctcp
  Duration round_trip_{}, variation_{};
  std::uint32_t backoff_ = 0;
  Time deadline_ = never;
  std::uint64_t repeated_ = 0;
};

class TcpReceiver {
 public:
  explicit TcpReceiver(TcpWindow::Control control) : exact_echo_(control == TcpWindow::Control::dctcp) {}

  // An acknowledgement that is due at once.
  [[nodiscard]] std::optional<TcpFrame> on_segment(const TcpFrame& frame, bool marked, Time now);
  [[nodiscard]] std::optional<TcpFrame> on_timer(Time now);
  [[nodiscard]] Time next_timeout() const { return deadline_; }
  [[nodiscard]] std::uint64_t segments() const { return next_; }  // in order

 private:
  [[nodiscard]] TcpFrame acknowledge();

  const bool exact_echo_;
  std::uint64_t next_ = 0, last_ = 0;             // expected; the last that came
  std::map<std::uint64_t, std::uint64_t> later_;  // [first, end)
  std::uint32_t unacknowledged_ = 0;
  bool echo_ = false;
  Time deadline_ = never;
};

[[nodiscard]] TcpWindow::Control tcp_control_of(const std::string& name);

}  // namespace netsum::sim
