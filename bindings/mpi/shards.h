// The aggregators that a process runs for its host, where NETSUM_SWITCH names none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "bindings/settings/settings.h"
#include "netsum/aggregator.h"

namespace netsum::mpi {

// Equal for two processes exactly if they share a machine and its network (but for a hash's collisions).
[[nodiscard]] std::uint64_t host_identity();

// The address of this host from which its packets leave for `host`; empty: none that `host` could reach.
[[nodiscard]] std::string own_address_towards(const std::string& host);

class Shards {
 public:
  // `token`: what ranks must know to join.
  Shards(std::string token, const settings::Settings& settings) : token_(std::move(token)), settings_(settings) {}

  [[nodiscard]] const std::string& token() const { return token_; }
  // "host:port" of the shard that listens at `host`; it serves all communicators. Any thread. Throws Error.
  [[nodiscard]] std::string at(const std::string& host);

 private:
  const std::string token_;
  const settings::Settings& settings_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Aggregator>> running_;
};

}  // namespace netsum::mpi
