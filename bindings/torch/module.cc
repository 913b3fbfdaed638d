// The extension module netsum.torch._C. Python's decisions (path, addresses) are in agreement.py.
#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "process_group.h"

namespace py = pybind11;

namespace netsum::torch_backend {
namespace {

using TorchGroup = Group<GroupBase>;

// Lines come from native threads, which must not wait for Python's lock. stdio writes lines whole.
std::function<void(const std::string&)> log_to_stderr(const std::string& prefix) {
  if (prefix.empty()) return {};
  return [prefix](const std::string& line) { std::fprintf(stderr, "%s%s\n", prefix.c_str(), line.c_str()); };
}

// The protocol's settings; python/netsum/torch/settings.py has refused those of other protocols.
Protocol protocol_of(const std::string& name, const std::string& switch_address, const std::string& wire,
                     const std::string& shared_memory, const std::string& verbs, const VerbsSettings& verbs_settings) {
  Protocol protocol = protocol_named(name);
  if (auto* const switchml = std::get_if<SwitchMl>(&protocol)) {
    switchml->switch_address = switch_address;
    for (const WireFormat each : {WireFormat::float32, WireFormat::float16, WireFormat::bfloat16}) {
      if (wire == to_string(each)) switchml->wire = each;
    }
    switchml->shared_memory = shared_memory == "off"        ? SharedMemory::off
                              : shared_memory == "required" ? SharedMemory::required
                                                            : SharedMemory::automatic;
  } else if (auto* const atp = std::get_if<Atp>(&protocol)) {
    atp->switch_address = switch_address;
  } else {
    auto& netreduce = std::get<NetReduce>(protocol);
    netreduce.switch_address = switch_address;
    netreduce.verbs = verbs;
    netreduce.verbs_settings = verbs_settings;
  }
  return protocol;
}

PacketSecurity security_of(const std::string& name) {
  for (const PacketSecurity each : {PacketSecurity::tag, PacketSecurity::encrypt}) {
    if (name == to_string(each)) return each;
  }
  return PacketSecurity::none;
}

std::unique_ptr<Communicator> connect(const std::string& protocol, std::vector<std::string> aggregators,
                                      const std::string& switch_address, std::string job, std::uint64_t generation,
                                      std::uint32_t rank, std::uint32_t world_size, std::uint32_t threads,
                                      std::uint32_t slots, std::uint32_t packet_elements, const std::string& wire,
                                      const std::string& shared_memory, const std::string& verbs,
                                      const VerbsSettings& verbs_settings, std::chrono::milliseconds recovery,
                                      std::string token, std::string tls_ca, const std::string& packet_security,
                                      bool require_keys, std::chrono::milliseconds connect_deadline,
                                      std::chrono::milliseconds operation_deadline, const std::string& log_prefix) {
  Options options;
  options.protocol = protocol_of(protocol, switch_address, wire, shared_memory, verbs, verbs_settings);
  options.aggregators = std::move(aggregators);
  options.job = std::move(job);
  options.generation = generation;
  options.rank = rank;
  options.world_size = world_size;
  options.threads = threads;
  options.slots = slots;
  options.packet_elements = packet_elements;
  options.recovery = recovery;
  options.token = std::move(token);
  options.tls_ca = std::move(tls_ca);
  options.packet_security = security_of(packet_security);
  options.require_keys = require_keys;
  options.connect_deadline = connect_deadline;
  options.operation_deadline = operation_deadline;
  options.log = log_to_stderr(log_prefix);
  const py::gil_scoped_release release;
  return std::make_unique<Communicator>(Communicator::connect(options));
}

std::shared_ptr<Aggregator> start_shard(const std::string& listen, std::uint32_t threads, std::string token,
                                        std::string tls_cert, std::string tls_key, const std::string& log_prefix) {
  AggregatorOptions options;
  options.listen = listen;
  options.threads = threads;
  options.token = std::move(token);
  options.tls_cert = std::move(tls_cert);
  options.tls_key = std::move(tls_key);
  options.log = log_to_stderr(log_prefix);
  const py::gil_scoped_release release;
  return std::make_shared<Aggregator>(options);
}

// A communicator between connect() and the group that will own it; if dropped before that, it leaves the job.
class Connection {
 public:
  explicit Connection(std::unique_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { close(); }

  std::unique_ptr<Communicator> take() { return std::move(communicator_); }

  void close() {
    const py::gil_scoped_release release;
    communicator_.reset();
  }

 private:
  std::unique_ptr<Communicator> communicator_;
};

// The groups of this process, to be left at its end: in 2.x Python's objects for them come and go. Python's lock guards it.
std::vector<c10::weak_intrusive_ptr<TorchGroup>>& all_groups() {
  static auto* const groups = new std::vector<c10::weak_intrusive_ptr<TorchGroup>>;
  return *groups;
}

void remember(const c10::intrusive_ptr<TorchGroup>& group) {
  std::erase_if(all_groups(), [](const auto& each) { return each.expired(); });
  all_groups().emplace_back(group);
}

void leave_all() {
  std::vector<c10::intrusive_ptr<TorchGroup>> groups;
  for (const auto& each : all_groups()) {
    if (auto group = each.lock()) groups.push_back(std::move(group));
  }
  const py::gil_scoped_release release;
  for (const auto& group : groups) group->shutdown();
}

py::dict as_dict(const CallCounts::Count& count) {
  return py::dict(py::arg("calls") = count.calls, py::arg("bytes") = count.bytes);
}

py::dict statistics(const TorchGroup& group) {
  Statistics wire;
  std::uint64_t operations = 0, bytes = 0;
  std::string placement;
  if (const SwitchQueue* queue = group.queue(); queue != nullptr && group.is_ours()) {
    const py::gil_scoped_release release;
    wire = queue->statistics();
    operations = queue->operations();
    bytes = queue->bytes();
    placement = queue->placement();
  }
  py::dict collectives, gloo_operations;
  for (const auto& [collective, paths] : group.counts()) {
    py::dict by_gloo;
    std::uint64_t gloo_calls = 0;
    for (const auto& [reason, count] : paths.by_gloo) {
      by_gloo[py::str(reason)] = as_dict(count);
      gloo_calls += count.calls;
    }
    collectives[py::str(collective)] = py::dict(py::arg("switch") = as_dict(paths.by_switch), py::arg("gloo") = by_gloo);
    if (gloo_calls > 0) gloo_operations[py::str(collective)] = gloo_calls;
  }
  py::dict result;
  result["path"] = group.decision().path;
  result["reason"] = group.decision().reason;
  result["mode"] = group.decision().mode;
  result["job"] = group.decision().job;
  result["switches"] = group.decision().switches;
  result["placement"] = placement;
  result["switch_operations"] = operations;
  result["switch_tensor_bytes"] = bytes;
  result["gloo_operations"] = gloo_operations;
  result["collectives"] = collectives;
  result["seconds_in_all_reduce"] = group.seconds_in_all_reduce();
  result["wire_bytes_sent"] = wire.wire_bytes_sent;
  result["wire_bytes_received"] = wire.wire_bytes_received;
  result["packets_sent"] = wire.packets_sent;
  result["packets_received"] = wire.packets_received;
  result["packets_retransmitted"] = wire.packets_retransmitted;
  result["shared_memory"] = wire.shared_memory;
  result["bytes_copied"] = wire.bytes_copied;
  result["slots"] = wire.slots;
  result["packet_elements"] = wire.packet_elements;
  return result;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  py::module_::import("torch.distributed");  // has the base classes of this module's types
  module.attr("torch_version") = std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR);

  // netsum.torch.Error, a RuntimeError with the code of docs/errors.md: thrown by this module, and by Work.wait() in torch.
  static py::exception<Error> error_type(module, "Error", PyExc_RuntimeError);
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& error) {
      py::object raised = py::handle(error_type.ptr())(error.what());
      raised.attr("code") = to_string(error.code());
      PyErr_SetObject(error_type.ptr(), raised.ptr());
    }
  });

  py::class_<Connection>(module, "Connection").def("close", &Connection::close);
  py::class_<Aggregator, std::shared_ptr<Aggregator>>(module, "Aggregator").def("address", &Aggregator::address);

  const VerbsSettings by_default;
  py::class_<VerbsSettings>(module, "VerbsSettings")
      .def(py::init([](std::uint8_t port, std::optional<std::uint8_t> gid_index, std::uint8_t ack_timeout,
                       std::uint8_t retries, std::uint8_t traffic_class, std::uint8_t service_level) {
             return VerbsSettings{port, gid_index, ack_timeout, retries, traffic_class, service_level};
           }),
           py::kw_only(), py::arg("port") = by_default.port, py::arg("gid_index") = by_default.gid_index,
           py::arg("ack_timeout") = by_default.ack_timeout, py::arg("retries") = by_default.retries,
           py::arg("traffic_class") = by_default.traffic_class, py::arg("service_level") = by_default.service_level);

  module.def(
      "connect",
      [](const std::string& protocol, std::vector<std::string> aggregators, const std::string& switch_address,
         std::string job, std::uint64_t generation, std::uint32_t rank, std::uint32_t world_size, std::uint32_t threads,
         std::uint32_t slots, std::uint32_t packet_elements, const std::string& wire, const std::string& shared_memory,
         const std::string& verbs, const VerbsSettings& verbs_settings, std::chrono::milliseconds recovery,
         std::string token, std::string tls_ca, const std::string& packet_security, bool require_keys,
         std::chrono::milliseconds connect_deadline, std::chrono::milliseconds operation_deadline,
         const std::string& log_prefix) {
        return std::make_unique<Connection>(
            connect(protocol, std::move(aggregators), switch_address, std::move(job), generation, rank, world_size, threads,
                    slots, packet_elements, wire, shared_memory, verbs, verbs_settings, recovery, std::move(token),
                    std::move(tls_ca), packet_security, require_keys, connect_deadline, operation_deadline, log_prefix));
      },
      py::kw_only(), py::arg("protocol"), py::arg("aggregators"), py::arg("switch_address"), py::arg("job"),
      py::arg("generation"), py::arg("rank"), py::arg("world_size"), py::arg("threads"), py::arg("slots"),
      py::arg("packet_elements"), py::arg("wire"), py::arg("shared_memory"), py::arg("verbs"), py::arg("verbs_settings"),
      py::arg("recovery"), py::arg("token"), py::arg("tls_ca"), py::arg("packet_security"), py::arg("require_keys"),
      py::arg("connect_deadline"), py::arg("operation_deadline"), py::arg("log_prefix"));
  module.def("start_shard", &start_shard, py::kw_only(), py::arg("listen"), py::arg("threads"), py::arg("token"),
             py::arg("tls_cert"), py::arg("tls_key"), py::arg("log_prefix"));

  module.def("leave_all", &leave_all);
  py::class_<TorchGroup, GroupBase, c10::intrusive_ptr<TorchGroup>>(module, "ProcessGroup")
      .def(py::init([](c10::intrusive_ptr<GroupBase> gloo, Connection* connection, std::shared_ptr<Aggregator> shard,
                       c10::intrusive_ptr<c10d::Store> store, const std::string& path, const std::string& reason,
                       const std::string& job, const std::string& mode, const std::string& switches, int shards,
                       const std::string& log_prefix) {
             auto group = c10::make_intrusive<TorchGroup>(
                 std::move(gloo), connection == nullptr ? nullptr : connection->take(), std::move(shard), std::move(store),
                 Decision{path, reason, job, mode, switches, shards}, log_to_stderr(log_prefix));
             remember(group);
             return group;
           }),
           py::kw_only(), py::arg("gloo"), py::arg("connection"), py::arg("shard"), py::arg("store"), py::arg("path"),
           py::arg("reason"), py::arg("job"), py::arg("mode"), py::arg("switches"), py::arg("shards"), py::arg("log_prefix"))
      .def("_netsum_move_to_allocated", &TorchGroup::move_to_allocated, py::call_guard<py::gil_scoped_release>())
      .def("_netsum_statistics", &statistics);
}

}  // namespace netsum::torch_backend
