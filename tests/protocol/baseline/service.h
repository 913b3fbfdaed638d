// The parameter server at an aggregator: each lane has a part of each job's chunks.
#pragma once

#include <vector>

#include "protocol/baseline/server.h"
#include "service/lane.h"
#include "service/service.h"

namespace netsum::baseline {

[[nodiscard]] session::ProtocolRules rules();

class Service final : public service::Service {
 public:
  explicit Service(const service::Lanes& lanes);

  void report(std::size_t lane, Counters& counters) const override;
  [[nodiscard]] std::optional<session::ProtocolRules> rules() const override { return baseline::rules(); }
  [[nodiscard]] std::unique_ptr<service::ServedJob> start(const session::StartJob& start) override;

  [[nodiscard]] const Server& at(std::size_t lane) const { return *servers_[lane]; }  // within its run()

 private:
  class Job;

  const service::Lanes lanes_;
  std::vector<Server*> servers_;  // the lanes own them
};

}  // namespace netsum::baseline
