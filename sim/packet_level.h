// An experiment packet by packet: the product's ranks, aggregators and switches, over the experiment's network.
#pragma once

#include <ostream>

#include "sim/experiment.h"
#include "sim/medium.h"

namespace netsum::sim {

// Until all jobs have ended, or until the experiment's end. Throws std::invalid_argument for what no network could be, and
// for a series of a counter that there is not. `pcap`: gets each datagram, as it leaves its sender; null: nobody does.
[[nodiscard]] Report run_packets(const Experiment& experiment, std::ostream* pcap = nullptr);

// Over a medium that has the experiment's network, and this time.
[[nodiscard]] Report run_packets(const Experiment& experiment, Medium& medium, std::ostream* pcap = nullptr);
inline constexpr Time packet_level_origin{std::chrono::seconds(1)};  // zero stands for "never yet" in places

}  // namespace netsum::sim
