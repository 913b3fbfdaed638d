// `netsum simulate` with a protocol and a congestion control that the product does not have: docs/extending.md shows it.
#include "apps/netsum/command_line.h"
#include "protocol/additive.h"
#include "protocol/baseline/simulated.h"
#include "sim/atp.h"

int main(int argc, char** argv) {
  using namespace netsum;
  sim::register_protocol("baseline",
                         []() -> std::unique_ptr<sim::Protocol> { return std::make_unique<baseline::Simulated>(); });
  sim::register_protocol("atp-additive", [] { return sim::make_atp(additive::make); });
  return app::run_program(
      argc, argv,
      {"simulator", "netsum simulate, with protocols of one's own.", "", [](CLI::App& root, app::Sections& sections) {
         app::Commands commands;
         commands.push_back(app::make_simulate_command(root, sections));
         return commands;
       }});
}
