#include "jobs/layouts.h"

#include "jobs/own_layouts.h"

namespace netsum::jobs {

std::string layouts() {
  return "atp: " + atp_layout() + "\nnetreduce: " + netreduce_layout() + "\nswitchml: " + switchml_layout() +
         "\nswitchml-chip: " + chip_layout() + "\ntree: " + tree_layout() + "\n";
}

}  // namespace netsum::jobs
