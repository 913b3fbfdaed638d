// What `netsum switch` and `netsum ps` have in common about who may join, and what jobs may take.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config.h"
#include "netsum/tenant.h"

namespace netsum::app {

class Admittance {
 public:
  explicit Admittance(Settings& settings);

  // Reads the files. Throws UsageError: one cannot be read, or whoever reaches `listen` could join.
  void resolve(const std::string& listen);
  // Into the options of a daemon.
  template <class Options>
  void apply(Options& options) const {
    options.token = token_;
    options.daemon_token = daemon_token_;
    options.tenants = tenants_;
    options.memory_bytes = std::uint64_t{memory_mib_} << 20;
  }
  // The tenants' file anew, for a daemon that runs: on an error the former tenants stay, and the log says why.
  template <class Daemon>
  void reload(Daemon& daemon) const {
    if (tenants_file_.empty()) return say("SIGHUP: there is no --tenants file to read again");
    try {
      auto tenants = read();
      const std::size_t count = tenants.size();
      daemon.set_tenants(std::move(tenants));
      say("SIGHUP: " + std::to_string(count) + " tenants from " + tenants_file_);
    } catch (const std::exception& error) {
      say(std::string("warning: SIGHUP: cannot reload the tenants, so the previous ones stay in effect: ") + error.what());
    }
  }

 private:
  [[nodiscard]] std::vector<Tenant> read() const;
  static void say(const std::string& line);

  std::string token_file_, daemon_token_file_, tenants_file_;
  std::uint32_t memory_mib_ = 1024;
  bool anyone_may_join_ = false;
  std::string token_, daemon_token_;
  std::vector<Tenant> tenants_;
};

}  // namespace netsum::app
