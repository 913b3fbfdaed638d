// Of builds without libnghttp2.
#include "netsum/error.h"
#include "p4app/rank.h"
#include "p4app/switch_daemon.h"

namespace netsum::p4app {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::bad_argument,
              "this netsum was built without libnghttp2, which --compat p4app needs (Debian: libnghttp2-dev)");
}

}  // namespace

struct SwitchDaemon::Impl {};
SwitchDaemon::SwitchDaemon(const SwitchDaemonOptions&) {
  refuse();
}
SwitchDaemon::SwitchDaemon(SwitchDaemon&&) noexcept = default;
SwitchDaemon::~SwitchDaemon() = default;
std::string SwitchDaemon::address() const {
  refuse();
}
std::string SwitchDaemon::summary() const {
  refuse();
}

struct Rank::Impl {};
Rank::Rank(const RankOptions&) {
  refuse();
}
Rank::~Rank() = default;
void Rank::all_reduce(DType, std::span<std::byte>) {
  refuse();
}
void Rank::barrier() {
  refuse();
}
WorkerCounters Rank::worker_counters() const {
  refuse();
}
transport::Counters Rank::transport_counters() const {
  refuse();
}

}  // namespace netsum::p4app
