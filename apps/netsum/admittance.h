// Which ranks may join a daemon, and which resources their jobs may use.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "config.h"
#include "netsum/tenant.h"

namespace netsum::app {

// For a daemon with one secret for all ranks.
class Admittance {
 public:
  explicit Admittance(Settings& settings);

  // The secret; empty: none. Throws UsageError: the file cannot be read, or any host that reaches `listen` could join.
  // `others`: flags that would serve in place of the secret, for the error.
  [[nodiscard]] std::string resolve(const std::string& listen, const std::string& others = "") const;
  void check_reach(const std::string& listen, const std::string& others = "") const;
  [[nodiscard]] const std::string& token_file() const { return token_file_; }
  // For what has no secrets. Throws UsageError.
  void check_reach_without_tokens(const std::string& listen) const;

 private:
  std::string token_file_;
  bool anyone_may_join_ = false;
};

// For `netsum switch` and `netsum ps`, which serve tenants and to which other daemons announce jobs.
class TenantAdmittance {
 public:
  explicit TenantAdmittance(Settings& settings);

  // Reads the files into the options of a daemon that will listen at options.listen. Throws as Admittance::resolve().
  template <class Options>
  void apply(Options& options) {
    resolve(options.listen);
    options.token = token_;
    options.daemon_token = daemon_token_;
    options.tenants = tenants_;
    options.memory_bytes = std::uint64_t{memory_mib_} << 20;
  }
  void check_reach_without_tokens(const std::string& listen) const { secret_.check_reach_without_tokens(listen); }
  // Reloads the tenants' file of a running daemon. On an error the former tenants stay, and the log has the reason.
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
  void resolve(const std::string& listen);
  [[nodiscard]] std::vector<Tenant> read() const;
  static void say(const std::string& line);

  const Settings& settings_;
  Admittance secret_;
  std::string tenants_file_, daemon_token_file_;
  std::uint32_t memory_mib_ = 1024;
  std::string token_, daemon_token_;
  std::vector<Tenant> tenants_;
};

}  // namespace netsum::app
