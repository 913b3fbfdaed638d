// NetReduce's communication-time model (src/protocol/netreduce/time_model.h) for scripts: a JSON object a line in, one out.
//
//   {"pattern": "pn", "bytes": 1e8, "gpus": 32, "gpus_per_machine": 8, "hop_seconds": 1e-6, "intra": 1.5e11,
//   "inter": 1.25e10}
//   {"stages": {"before": ..., "across": ..., "after": ...}, "over_ta": ..., "over_fr": ..., "surely_over_ta": true, ...}
//
// over_ta and over_fr are (4) and (5), what parallel NetReduce is faster by; surely_over_fr is (6).
#include "protocol/netreduce/time_model.h"

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace {

using netsum::netreduce::Pattern;

Pattern pattern_of(const std::string& name) {
  if (name == "fr") return Pattern::flat_ring;
  if (name == "ta") return Pattern::tencent;
  if (name == "pn") return Pattern::parallel_netreduce;
  if (name == "pr") return Pattern::parallel_ring;
  throw std::runtime_error("no pattern '" + name + "'");
}

}  // namespace

int main() try {
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto asked = nlohmann::json::parse(line);
    const netsum::netreduce::ClusterShape shape{.bytes = asked.at("bytes"),
                                                .gpus = asked.at("gpus"),
                                                .gpus_per_machine = asked.at("gpus_per_machine"),
                                                .hop_seconds = asked.at("hop_seconds"),
                                                .intra_bytes_per_second = asked.at("intra"),
                                                .inter_bytes_per_second = asked.at("inter")};
    const auto stages = netsum::netreduce::predict(pattern_of(asked.at("pattern")), shape);
    std::cout << nlohmann::json{{"stages", {{"before", stages.before}, {"across", stages.across}, {"after", stages.after}}},
                                {"over_ta", over_tencent(shape).seconds(shape)},
                                {"over_fr", over_flat_ring(shape).seconds(shape)},
                                {"surely_over_ta", surely_beats_tencent(shape)},
                                {"surely_over_fr", surely_beats_flat_ring(shape)}}
              << '\n';
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "time_model: %s\n", error.what());
  return 1;
}
