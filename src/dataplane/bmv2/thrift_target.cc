#include <thrift/Thrift.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/protocol/TMultiplexedProtocol.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TSocket.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/waiting.h"
#include "dataplane/bmv2/SimplePreLAG.h"
#include "dataplane/bmv2/SimpleSwitch.h"
#include "dataplane/bmv2/Standard.h"
#include "dataplane/bmv2/target.h"
#include "netsum/error.h"

namespace netsum::dataplane::bmv2 {
namespace {

using apache::thrift::TException;
using apache::thrift::protocol::TBinaryProtocol;
using apache::thrift::protocol::TMultiplexedProtocol;
using apache::thrift::transport::TBufferedTransport;
using apache::thrift::transport::TSocket;

constexpr int patience_ms = 2000;         // of each call
constexpr int long_patience_ms = 10'000;  // of one that writes every register
constexpr std::int32_t context = 0;

// "101": ports 0 and 2.
std::string bits_of(const std::vector<std::uint32_t>& ports) {
  if (ports.empty()) return "";
  std::string bits(*std::max_element(ports.begin(), ports.end()) + std::size_t{1}, '0');
  for (const std::uint32_t port : ports) bits[bits.size() - 1 - port] = '1';
  return bits;
}

class ThriftTarget final : public Target {
 public:
  explicit ThriftTarget(const std::string& address) : address_(address) {
    const std::size_t colon = address.rfind(':');
    const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
    if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos) {
      throw Error(ErrorCode::bad_argument, "the target must be HOST:PORT, not '" + address + "'");
    }
    apache::thrift::GlobalOutput.setOutputFunction([](const char*) {});  // what fails is in the exception, too
    socket_ = std::make_shared<TSocket>(address.substr(0, colon), std::stoi(port));
    socket_->setConnTimeout(patience_ms);
    socket_->setSendTimeout(patience_ms);
    socket_->setRecvTimeout(patience_ms);
    transport_ = std::make_shared<TBufferedTransport>(socket_);
    const auto protocol = std::make_shared<TBinaryProtocol>(transport_);
    standard_ = std::make_unique<runtime::StandardClient>(std::make_shared<TMultiplexedProtocol>(protocol, "standard"));
    groups_ =
        std::make_unique<runtime::SimplePreLAGClient>(std::make_shared<TMultiplexedProtocol>(protocol, "simple_pre_lag"));
    queues_ =
        std::make_unique<runtime::SimpleSwitchClient>(std::make_shared<TMultiplexedProtocol>(protocol, "simple_switch"));
    call("connecting", [] {});
  }

  void reset() override {
    call("emptying it", [&] {
      socket_->setRecvTimeout(long_patience_ms);
      standard_->bm_reset_state();
      socket_->setRecvTimeout(patience_ms);
    });
  }
  std::int32_t add_entry(const std::string& table, const std::vector<Bytes>& key, const std::string& action,
                         const std::vector<Bytes>& data) override {
    std::vector<runtime::Match> matches;
    for (const Bytes& field : key) {
      runtime::ExactMatch exact;
      exact.key = field;
      runtime::Match& match = matches.emplace_back();
      match.type = runtime::MatchType::EXACT;
      match.__set_exact(exact);
    }
    return call("adding an entry to table " + table,
                [&] { return standard_->bm_mt_add_entry(context, table, matches, action, data, runtime::EntryOptions()); });
  }
  void delete_entry(const std::string& table, std::int32_t entry) override {
    call("deleting an entry of table " + table, [&] { standard_->bm_mt_delete_entry(context, table, entry); });
  }
  std::uint64_t entries_of(const std::string& table) override {
    return call("counting the entries of table " + table,
                [&] { return static_cast<std::uint64_t>(standard_->bm_mt_get_num_entries(context, table)); });
  }
  Count count(const std::string& counter, std::uint32_t index) override {
    runtime::CounterValue value;
    call("reading counter " + counter,
         [&] { standard_->bm_counter_read(value, context, counter, static_cast<std::int32_t>(index)); });
    return {static_cast<std::uint64_t>(value.packets), static_cast<std::uint64_t>(value.bytes)};
  }
  void clear_count(const std::string& counter, std::uint32_t index) override {
    call("clearing counter " + counter,
         [&] { standard_->bm_counter_write(context, counter, static_cast<std::int32_t>(index), runtime::CounterValue()); });
  }
  std::vector<std::uint64_t> read_registers(const std::string& name) override {
    std::vector<std::int64_t> values;
    call("reading registers " + name, [&] { standard_->bm_register_read_all(values, context, name); });
    return {values.begin(), values.end()};
  }
  void fill_registers(const std::string& name, std::uint32_t begin, std::uint32_t end, std::uint64_t value) override {
    call("writing registers " + name, [&] {
      standard_->bm_register_write_range(context, name, static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end),
                                         static_cast<std::int64_t>(value));
    });
  }
  void limit_meter(const std::string& name, double packets_per_second, std::uint32_t burst) override {
    // Green up to the first rate; the second one is that of red.
    runtime::MeterRate rate;
    rate.units_per_micros = packets_per_second / 1e6;
    rate.burst_size = static_cast<std::int32_t>(burst);
    call("setting meter " + name, [&] { standard_->bm_meter_set_rates(context, name, 0, {rate, rate}); });
  }
  Group make_group(std::uint16_t number, const std::vector<Replica>& replicas) override {
    return call("making a group", [&] {
      Group group;
      group.handle = groups_->bm_mc_mgrp_create(context, number);
      for (const Replica& replica : replicas) {
        group.nodes.push_back(groups_->bm_mc_node_create(context, replica.number, bits_of(replica.ports), ""));
        groups_->bm_mc_node_associate(context, group.handle, group.nodes.back());
      }
      return group;
    });
  }
  void destroy_group(const Group& group) override {
    call("destroying a group", [&] {
      for (const std::int32_t node : group.nodes) groups_->bm_mc_node_destroy(context, node);
      groups_->bm_mc_mgrp_destroy(context, group.handle);
    });
  }
  std::vector<std::uint32_t> ports() override {
    std::vector<runtime::Port> ports;
    call("listing ports", [&] { standard_->bm_dev_mgr_show_ports(ports); });
    std::vector<std::uint32_t> numbers;
    for (const runtime::Port& port : ports) numbers.push_back(static_cast<std::uint32_t>(port.port_num));
    return numbers;
  }
  void deepen_queues(std::uint32_t packets) override {
    call("setting queues' depth", [&] { queues_->set_all_egress_queue_depths(static_cast<std::int32_t>(packets)); });
  }

 private:
  // One call at a time. After a failure the next one connects again: an answer that comes late must not be taken for
  // another's.
  template <class Call>
  auto call(const std::string& what, const Call& run) -> decltype(run()) {
    check_may_wait("the P4 switch");
    const std::lock_guard lock(mutex_);
    try {
      if (!transport_->isOpen()) {
        socket_->setRecvTimeout(patience_ms);
        transport_->open();
      }
      return run();
    } catch (const runtime::Refused& refusal) {
      throw Error(ErrorCode::refused, "the P4 switch at " + address_ + " refuses " + what + " (code " +
                                          std::to_string(refusal.code) + "): does it run netsum's program?");
    } catch (const TException& error) {
      transport_->close();
      throw Error(ErrorCode::unreachable,
                  "the P4 switch at " + address_ + " does not answer (" + what + "): " + error.what());
    }
  }

  const std::string address_;
  std::mutex mutex_;
  std::shared_ptr<TSocket> socket_;
  std::shared_ptr<TBufferedTransport> transport_;
  std::unique_ptr<runtime::StandardClient> standard_;
  std::unique_ptr<runtime::SimplePreLAGClient> groups_;
  std::unique_ptr<runtime::SimpleSwitchClient> queues_;
};

}  // namespace

std::unique_ptr<Target> connect(const std::string& address) {
  return std::make_unique<ThriftTarget>(address);
}

}  // namespace netsum::dataplane::bmv2
