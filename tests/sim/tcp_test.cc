// TCP connections over the simulator's network, beside what theory says of their rates; tests/e2e/ns3.py compares them with
// ns-3's.
#include "sim/tcp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "sim/packet_level.h"
#include "small_experiments.h"

namespace netsum::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t megabit = 1'000'000;
constexpr double frame = tcp_segment_bytes + tcp_header_bytes;

// Connections from the left to the right of a trunk, beside a job of one rank that waits.
struct Connections {
  Experiment experiment;
  double from_second;

  Connections(const std::vector<std::string>& controls, const PortPlan& trunk, double until = 60, double from = 10)
      : experiment(
            on(shared_bottleneck(static_cast<std::uint32_t>(controls.size()) + 1,
                                 static_cast<std::uint32_t>(controls.size()), links({.bits_per_second = 10 * gigabit})))),
        from_second(from) {
    const auto count = static_cast<NodeId>(controls.size());
    experiment.topology[1].up = experiment.topology[1].down = trunk;
    add_job(experiment, {2 + count}, {{10, {}, Duration(static_cast<std::int64_t>(until * 1e9))}}).plan.slots = 4;
    for (NodeId i = 0; i < count; ++i) {
      BackgroundFlow flow{.name = name_of(i), .from = 2 + i, .to = 3 + count + i};
      flow.tcp = controls[i];
      flow.start = milliseconds(137) * i;
      experiment.background.push_back(flow);
    }
    experiment.series = {"background.*.bytes", "link.right.down.queue", "link.right.down.dropped"};
    experiment.bin = milliseconds(10);
  }
  [[nodiscard]] static std::string name_of(std::size_t flow) { return std::string(1, static_cast<char>('a' + flow)); }
  [[nodiscard]] Report run() const { return run_packets(experiment); }
  // Of data, in megabits a second.
  [[nodiscard]] double rate(const Report& report, std::size_t flow) const {
    return 8 * mean(report, "background." + name_of(flow) + ".bytes") / 10e-3 / 1e6;
  }
  [[nodiscard]] double mean(const Report& report, const std::string& name) const {
    const std::vector<double>& bins = report.series.at(name);
    const auto first = bins.begin() + static_cast<std::ptrdiff_t>(from_second * 100);
    return std::accumulate(first, bins.end(), 0.0) / static_cast<double>(bins.end() - first);
  }
};

// A window grows by a segment each round trip, up to what path and queue hold, and is halved.
double saw_tooth(double rate, double round_trip, double most_waiting) {
  const double path = rate * round_trip;  // in segments, as all here
  double window = (path + most_waiting) / 2, sent = 0, time = 0;
  for (; window < path + most_waiting; ++window) {
    sent += window;
    time += std::max(round_trip, window / rate);
  }
  return sent / time;
}

TEST(Tcp, RenoFillsALinkAsFarAsItsQueueHoldsAHalvedWindow) {
  const double line = 100e6 / 8 / frame;
  for (const std::uint64_t buffer : {15'000U, 60'000U, 200'000U}) {
    const Connections one({"reno"}, {.bits_per_second = 100 * megabit, .delay = milliseconds(5), .buffer_bytes = buffer});
    const Report report = one.run();
    const double expected = saw_tooth(line, 10e-3, static_cast<double>(buffer) / frame) * tcp_segment_bytes * 8 / 1e6;
    EXPECT_NEAR(1, one.rate(report, 0) / expected, 0.03) << buffer;
  }
}

// One mark or a hundred of one window halve it once.
TEST(Tcp, RenoHalvesItsWindowOnceForTheMarksOfOne) {
  const Connections one({"reno"}, {.bits_per_second = 100 * megabit, .delay = milliseconds(5), .mark_bytes = 60'000});
  const Report report = one.run();
  const double expected = saw_tooth(100e6 / 8 / frame, 10e-3, 60'000 / frame) * tcp_segment_bytes * 8 / 1e6;
  EXPECT_NEAR(1, one.rate(report, 0) / expected, 0.03);
  EXPECT_EQ(0U, report.lost);
}

// W(t) = C (t - K)^3 + Wmax (RFC 9438, Figure 1).
TEST(TcpWindow, CubicGrowsByItsCurve) {
  TcpWindow window(TcpWindow::Control::cubic);
  const Duration round_trip = milliseconds(100);
  window.acknowledged(1990, round_trip, Time(seconds(1)));
  window.congested();
  EXPECT_NEAR(1400, window.segments(), 1e-6);
  const double k = std::cbrt(0.3 * 2000 / 0.4);
  for (int trips = 1; trips <= 150; ++trips) {
    window.acknowledged(static_cast<std::uint64_t>(window.segments()), round_trip, Time(seconds(1)) + trips * round_trip);
    EXPECT_NEAR(2000 + 0.4 * std::pow(trips * 0.1 - k, 3), window.segments(), 12) << trips;
  }
}

// Where that is faster: by 0.53 segments a round trip up to the window before, whatever fast convergence makes of the curve,
// and by one from there on (RFC 9438, 4.3).
TEST(TcpWindow, CubicIsAsFastAsReno) {
  TcpWindow window(TcpWindow::Control::cubic);
  const Duration round_trip = milliseconds(10);
  window.acknowledged(30, round_trip, Time(seconds(1)));
  window.congested();
  window.congested();
  EXPECT_NEAR(0.7 * 28, window.segments(), 1e-6);
  auto after = [&, trips = 0](int until) mutable {
    for (; trips < until; ++trips)
      window.acknowledged(static_cast<std::uint64_t>(std::lround(window.segments())), round_trip,
                          Time(seconds(1)) + trips * round_trip);
    return window.segments();
  };
  EXPECT_NEAR(0.7 * 28 + 12 * 0.9 / 1.7, after(12), 0.3);
  EXPECT_NEAR(28 + (20 - 0.3 * 28 * 1.7 / 0.9), after(20), 0.5);
  window.timed_out(30);
  EXPECT_EQ(1, window.segments());
  window.acknowledged(20, round_trip, Time(seconds(2)));
  EXPECT_NEAR(0.7 * 30, window.segments(), 0.1);
}

// CUBIC (RFC 9438): a window that was w has w - 0.3 w, and is w again after K seconds.
TEST(Tcp, CubicComesBackAfterItsTime) {
  const Connections one({"cubic"}, {.bits_per_second = 50 * megabit, .delay = milliseconds(30), .buffer_bytes = 50'000}, 300,
                        50);
  const Report report = one.run();
  const double line = 50e6 / 8 / frame, most = line * 60e-3 + 50'000 / frame;
  const double k = std::cbrt(0.3 * most / 0.4);
  double sent = 0;
  for (double time = 0; time < k; time += 1e-3) sent += std::min(line, (most + 0.4 * std::pow(time - k, 3)) / 60e-3) * 1e-3;
  EXPECT_NEAR(1, one.rate(report, 0) / (sent / k * tcp_segment_bytes * 8 / 1e6), 0.03);
  const std::vector<double>& dropped = report.series.at("link.right.down.dropped");
  int times = 0, quiet = 0;  // bins of 10 ms
  for (auto bin = dropped.begin() + 5000; bin != dropped.end(); ++bin) {
    if (*bin > 0 && quiet > 100) ++times;
    quiet = *bin > 0 ? 0 : quiet + 1;
  }
  EXPECT_NEAR(250 / k, times, 4);
}

// Mathis: a window of sqrt(3 / 2p).
TEST(Tcp, HasTheRateThatLossesAllow) {
  for (const double loss : {0.001, 0.004}) {
    const Connections one({"reno"}, {.bits_per_second = gigabit, .delay = milliseconds(5), .loss = loss}, 120);
    const double expected = std::sqrt(1.5 / loss) / 10e-3 * tcp_segment_bytes * 8 / 1e6;
    EXPECT_NEAR(1, one.rate(one.run(), 0) / expected, 0.1) << loss;
  }
  // Where round trips are short, it is as fast as Reno (§4.3).
  const PortPlan near{.bits_per_second = gigabit, .delay = milliseconds(5), .loss = 0.004};
  const Connections reno({"reno"}, near, 120), friendly({"cubic"}, near, 120);
  EXPECT_NEAR(1, friendly.rate(friendly.run(), 0) / reno.rate(reno.run(), 0), 0.15);
}

TEST(Tcp, ConnectionsThatAreAlikeShareALinkAndNearOnesTakeMore) {
  PortPlan trunk{.bits_per_second = 100 * megabit, .delay = milliseconds(5), .buffer_bytes = 1'000'000};
  trunk.red = RedPlan{.least_bytes = 30'000, .most_bytes = 200'000, .most_chance = 0.02};
  for (const char* control : {"reno", "cubic"}) {
    const Connections two({control, control}, trunk, 200);
    const Report report = two.run();
    EXPECT_NEAR(1, two.rate(report, 0) / two.rate(report, 1), 0.1) << control;
    EXPECT_GT(two.rate(report, 0) + two.rate(report, 1), 90) << control;
  }
  // As many refusals of all: rates are as round trips are.
  Connections apart({"reno", "reno"}, trunk, 200);
  apart.experiment.topology[2].up.delay = milliseconds(30);
  const Report report = apart.run();
  const double queue = apart.mean(report, "link.right.down.queue") * 8 / 100e6;
  EXPECT_NEAR((40e-3 + queue) / (10e-3 + queue), apart.rate(report, 1) / apart.rate(report, 0), 0.35);
}

TEST(Tcp, DctcpHoldsTheQueueAtItsMark) {
  const Connections two(
      {"dctcp", "dctcp"},
      {.bits_per_second = gigabit, .delay = microseconds(50), .buffer_bytes = 1'000'000, .mark_bytes = 60'000}, 3, 1);
  const Report report = two.run();
  EXPECT_EQ(0U, report.lost);
  EXPECT_NEAR(60'000, two.mean(report, "link.right.down.queue"), 15'000);
  EXPECT_NEAR(1, two.rate(report, 0) / two.rate(report, 1), 0.1);
  EXPECT_GT(two.rate(report, 0) + two.rate(report, 1), 940);
}

TEST(Tcp, GoesOnAfterAnOutageAndStopsWhenItIsTold) {
  PortPlan trunk{.bits_per_second = 100 * megabit, .delay = milliseconds(1), .buffer_bytes = 50'000};
  trunk.outages = {{seconds(2), seconds(3)}};
  Connections one({"cubic"}, trunk, 6, 0);
  one.experiment.background[0].stop = seconds(5);
  const Report report = one.run();
  const std::vector<double>& bins = report.series.at("background.a.bytes");
  const auto during = [&](std::ptrdiff_t from, std::ptrdiff_t to) {
    return std::accumulate(bins.begin() + from, bins.begin() + to, 0.0) * 8 / 1e6 / (static_cast<double>(to - from) / 100);
  };
  EXPECT_GT(during(100, 200), 85);
  EXPECT_EQ(0, during(210, 300));
  EXPECT_GT(during(400, 500), 85);
  EXPECT_EQ(0, during(530, 600));
}

TEST(Tcp, TakesItsPartOfAJobsLink) {
  Experiment experiment =
      on(star(5, links({.bits_per_second = gigabit, .delay = microseconds(20), .buffer_bytes = 100'000})));
  add_job(experiment, {1, 2, 3}, {{1'000'000, {}, {}}}).training.iterations = 5;
  const double alone = run_packets(experiment).jobs[0].operation_seconds.at(2);
  BackgroundFlow flow{.name = "tcp", .from = 4, .to = 1};
  flow.tcp = "cubic";
  experiment.background = {flow};
  const Report report = run_packets(experiment);
  EXPECT_EQ("", report.failure);
  EXPECT_GT(report.jobs[0].operation_seconds.at(2), 1.3 * alone);
  EXPECT_LT(report.jobs[0].operation_seconds.at(2), 10 * alone);
}

TEST(TcpReceiver, AcknowledgesEverySecondSegmentAndEachBehindAGap) {
  TcpReceiver receiver(TcpWindow::Control::reno);
  const Time now(seconds(1));
  const auto segment = [&](std::uint64_t number) { return receiver.on_segment({.number = number}, false, now); };
  EXPECT_FALSE(segment(0));
  EXPECT_EQ(2U, segment(1)->number);
  EXPECT_FALSE(segment(2));
  const auto gap = segment(5);
  ASSERT_TRUE(gap);
  EXPECT_EQ(3U, gap->number);
  EXPECT_EQ(std::pair(std::uint64_t{5}, std::uint64_t{6}), gap->selected[0]);
  EXPECT_EQ(std::pair(std::uint64_t{7}, std::uint64_t{8}), segment(7)->selected[0]);
  EXPECT_EQ(std::pair(std::uint64_t{5}, std::uint64_t{8}), segment(6)->selected[0]);
  EXPECT_EQ(4U, segment(3)->number);
  EXPECT_EQ(8U, segment(4)->number);
  EXPECT_EQ(8U, receiver.segments());
  EXPECT_EQ(8U, segment(4)->number);  // a repeat
}

}  // namespace
}  // namespace netsum::sim
