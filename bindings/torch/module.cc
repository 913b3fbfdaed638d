// The extension module netsum.torch._C. Python's decisions (path, addresses) are in agreement.py.
#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bindings/settings/settings.h"
#include "python_errors.h"
#include "routes.h"
#include "staged_group.h"
#include "torch_device.h"

namespace py = pybind11;

namespace netsum::torch_backend {
namespace {

using TorchGroup = Group<GroupBase>;

// Lines come from native threads, which must not wait for Python's lock. stdio writes lines whole.
std::function<void(const std::string&)> log_to_stderr(const std::string& prefix) {
  if (prefix.empty()) return {};
  return [prefix](const std::string& line) { std::fprintf(stderr, "%s%s\n", prefix.c_str(), line.c_str()); };
}

// The secret of shards: the one that the ranks were given, or else the group's own.
std::string token_of_shards(const settings::Settings& settings, std::string token) {
  return settings.options.token.empty() ? std::move(token) : settings.options.token;
}

// That a communicator has failed, which may be before its group is there to listen.
class FailureNotice {
 public:
  void tell() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    if (then_) then_();
  }
  void listen(std::function<void()> then) {
    const std::lock_guard lock(mutex_);
    then_ = std::move(then);
    if (failed_) then_();
  }

 private:
  std::mutex mutex_;
  bool failed_ = false;
  std::function<void()> then_;
};

// A communicator between connect() and the group that will own it; if dropped before that, it leaves the job.
class Connection {
 public:
  Connection(std::unique_ptr<Communicator> communicator, std::shared_ptr<FailureNotice> notice)
      : communicator_(std::move(communicator)), notice_(std::move(notice)) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { close(); }

  std::unique_ptr<Communicator> take() { return std::move(communicator_); }
  FailureNotice& notice() { return *notice_; }
  [[nodiscard]] const Communicator& communicator() const { return *communicator_; }

  void close() {
    const py::gil_scoped_release release;
    communicator_.reset();
  }

 private:
  std::unique_ptr<Communicator> communicator_;
  const std::shared_ptr<FailureNotice> notice_;
};

// `shards`: where the ranks join if the settings name no aggregator. `job_key`: of private sums, unless the settings have
// one.
std::unique_ptr<Connection> connect(const settings::Settings& settings, std::vector<std::string> shards, std::string token,
                                    std::string job_key, std::string job, std::uint64_t generation, std::uint32_t rank,
                                    std::uint32_t world_size, std::chrono::milliseconds connect_deadline,
                                    std::chrono::milliseconds operation_deadline, const std::string& log_prefix) {
  Options options = settings.options;
  if (!shards.empty()) {
    options.aggregators = std::move(shards);
    options.token = token_of_shards(settings, std::move(token));
    if (settings.tls_cert.empty()) options.tls_ca.clear();
  }
  if (options.private_sums && options.private_sums->key.empty()) options.private_sums->key = std::move(job_key);
  options.job = std::move(job);
  options.generation = generation;
  options.rank = rank;
  options.world_size = world_size;
  options.connect_deadline = connect_deadline;
  options.operation_deadline = operation_deadline;
  options.log = log_to_stderr(log_prefix);
  const auto notice = std::make_shared<FailureNotice>();
  options.on_failure = [notice](const Error&) { notice->tell(); };
  const py::gil_scoped_release release;
  return std::make_unique<Connection>(std::make_unique<Communicator>(Communicator::connect(options)), notice);
}

std::shared_ptr<Aggregator> start_shard(const settings::Settings& settings, const std::string& listen, std::string token,
                                        const std::string& log_prefix) {
  AggregatorOptions options;
  options.listen = listen;
  options.threads = settings.options.threads;
  options.token = token_of_shards(settings, std::move(token));
  options.tls_cert = settings.tls_cert;
  options.tls_key = settings.tls_key;
  options.log = log_to_stderr(log_prefix);
  const py::gil_scoped_release release;
  return std::make_shared<Aggregator>(options);
}

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

// What Python does once a group has failed; null: nothing. Never freed, as groups may run it until the process ends.
const py::object* failure_hook = nullptr;

void run_failure_hook() {
  if (failure_hook == nullptr || Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire lock;
  try {
    (*failure_hook)();
  } catch (py::error_already_set& raised) {
    raised.discard_as_unraisable("netsum.torch's hook of failures");
  }
}

py::dict as_dict(const FlightRecorder::Flight& flight) {
  py::dict result;
  result["number"] = flight.number;
  result["name"] = flight.name;
  result["input_sizes"] = flight.inputs.sizes;
  result["input_dtypes"] = flight.inputs.types;
  result["output_sizes"] = flight.outputs.sizes;
  result["output_dtypes"] = flight.outputs.types;
  result["created_ns"] = flight.created_ns;
  result["completed_ns"] = flight.completed_ns;
  result["timeout_ms"] = flight.timeout_ms;
  result["error"] = flight.error;
  return result;
}

// (job, size, flights) of each group that is at a switch.
py::list flights() {
  py::list result;
  for (const auto& each : all_groups()) {
    const auto group = each.lock();
    if (!group || !group->is_ours() || group->queue() == nullptr) continue;
    py::list of_group;
    for (const FlightRecorder::Flight& flight : group->queue()->flights()->flights()) of_group.append(as_dict(flight));
    result.append(py::make_tuple(group->decision().job, group->getSize(), of_group));
  }
  return result;
}

py::dict as_dict(const CallCounts::Count& count) {
  return py::dict(py::arg("calls") = count.calls, py::arg("bytes") = count.bytes);
}

py::dict statistics(const TorchGroup& group) {
  Statistics wire;
  std::uint64_t operations = 0, bytes = 0;
  std::string placement;
  std::vector<std::uint32_t> members;
  if (const SwitchQueue* queue = group.queue(); queue != nullptr && group.is_ours()) {
    const py::gil_scoped_release release;
    wire = queue->statistics();
    operations = queue->operations();
    bytes = queue->bytes();
    placement = queue->placement();
    members = queue->members();
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
  result["members"] = members;
  result["switch_operations"] = operations;
  result["switch_tensor_bytes"] = bytes;
  result["staged_tensor_bytes"] = group.is_ours() ? group.staged_bytes() : 0;
  result["gloo_operations"] = gloo_operations;
  result["collectives"] = collectives;
  result["seconds_in_all_reduce"] = group.seconds_in_all_reduce();
  result["wire_bytes_sent"] = wire.wire_bytes_sent;
  result["wire_bytes_received"] = wire.wire_bytes_received;
  result["packets_sent"] = wire.packets_sent;
  result["packets_received"] = wire.packets_received;
  result["packets_retransmitted"] = wire.packets_retransmitted;
  result["shared_memory"] = wire.shared_memory;
  result["values_examined"] = wire.values_examined;
  result["values_underflowed"] = wire.values_underflowed;
  result["values_clamped"] = wire.values_clamped;
  result["bytes_copied"] = wire.bytes_copied;
  result["busy_seconds"] = 1e-9 * static_cast<double>(wire.busy_nanoseconds);
  result["slots"] = wire.slots;
  result["packet_elements"] = wire.packet_elements;
  return result;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  py::module_::import("torch.distributed");  // has the base classes of this module's types
  module.attr("torch_version") = std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR);

  register_errors(module);

  py::class_<Connection>(module, "Connection")
      .def("close", &Connection::close)
      .def_property_readonly("newcomers", [](const Connection& its) { return its.communicator().newcomers(); })
      .def_property_readonly("next_operation", [](const Connection& its) { return its.communicator().next_operation(); });
  py::class_<Aggregator, std::shared_ptr<Aggregator>>(module, "Aggregator").def("address", &Aggregator::address);

  using settings::Settings;
  py::class_<Settings>(module, "Settings")
      .def(py::init<>())
      .def_property_readonly("mode", [](const Settings& its) { return to_string(its.mode); })
      .def_property_readonly("log", [](const Settings& its) { return to_string(its.log); })
      .def_property_readonly(
          "connect_seconds",
          [](const Settings& its) { return std::chrono::duration<double>(its.options.connect_deadline).count(); })
      .def_property_readonly("survivors", [](const Settings& its) { return its.options.survivors; })
      .def_property_readonly("most_ranks", [](const Settings& its) { return settings::most_ranks(its.options.protocol); })
      .def_readonly("switches", &Settings::switches)
      .def_readonly("above", &Settings::above)
      .def_readonly("address", &Settings::address)
      .def("common_to_all_ranks", [](const Settings& its) {
        py::dict values;
        for (const auto& [name, value] : settings::common_to_all_ranks(its)) values[py::str(name)] = value;
        return values;
      });
  module.def("read_settings", [] { return settings::read(); });

  module.def(
      "connect",
      [](const Settings& settings, std::vector<std::string> shards, std::string token, std::string job_key, std::string job,
         std::uint64_t generation, std::uint32_t rank, std::uint32_t world_size, std::chrono::milliseconds connect_deadline,
         std::chrono::milliseconds operation_deadline, const std::string& log_prefix) {
        return connect(settings, std::move(shards), std::move(token), std::move(job_key), std::move(job), generation, rank,
                       world_size, connect_deadline, operation_deadline, log_prefix);
      },
      py::kw_only(), py::arg("settings"), py::arg("shards"), py::arg("token"), py::arg("job_key"), py::arg("job"),
      py::arg("generation"), py::arg("rank"), py::arg("world_size"), py::arg("connect_deadline"),
      py::arg("operation_deadline"), py::arg("log_prefix"));
  module.def("start_shard", &start_shard, py::kw_only(), py::arg("settings"), py::arg("listen"), py::arg("token"),
             py::arg("log_prefix"));

  py::enum_<WireFormat>(module, "WireFormat").value("int8", WireFormat::int8).value("int4", WireFormat::int4);
  module.def("round_as", &round_as, py::call_guard<py::gil_scoped_release>());
  module.def("leave_all", &leave_all);
  module.def("set_capture_probe", [](const py::object& probe) {
    // Groups may call it at any time until the process ends, so it is never freed.
    const py::object& kept = *new py::object(probe);
    set_capture_probe([&kept](const std::string& device) {
      const py::gil_scoped_acquire acquire;
      return kept(device).cast<bool>();
    });
  });
  module.def("set_failure_hook", [](const py::object& hook) { failure_hook = new py::object(hook); });
  module.def("flights", &flights);
  py::class_<TorchGroup, GroupBase, c10::intrusive_ptr<TorchGroup>>(module, "ProcessGroup")
      .def("abort", &TorchGroup::abort, py::call_guard<py::gil_scoped_release>())
      .def("_netsum_move_to_allocated", &TorchGroup::move_to_allocated, py::call_guard<py::gil_scoped_release>())
      .def("_netsum_give_back", &TorchGroup::give_back, py::call_guard<py::gil_scoped_release>())
      .def("_netsum_admit", &TorchGroup::admit, py::call_guard<py::gil_scoped_release>())
      .def("_netsum_wait_for_all", &TorchGroup::wait_for_all, py::call_guard<py::gil_scoped_release>())
      .def("_netsum_behind",
           [](const TorchGroup& its) { return its.queue() == nullptr || !its.is_ours() ? 0 : its.queue()->behind(); })
      .def("_netsum_begin_step", &TorchGroup::begin_step, py::call_guard<py::gil_scoped_release>())
      .def("_netsum_statistics", &statistics);
  // Of calls made on the backend itself: the works of a group of torch may be wrapped (TORCH_DISTRIBUTED_DEBUG=DETAIL).
  py::class_<GroupWork, c10d::Work, c10::intrusive_ptr<GroupWork>>(module, "Work")
      .def("_netsum_left_out", &GroupWork::left_out);
  // What torch 2.x holds without a Python object, and later returns as a Backend, has its own class again by its dynamic
  // type.
  using Staged = StagedGroup<GroupBase>;
  py::class_<Staged, TorchGroup, c10::intrusive_ptr<Staged>>(module, "StagedProcessGroup")
      .def(py::init([](c10::intrusive_ptr<GroupBase> gloo, Connection* connection, std::shared_ptr<Aggregator> shard,
                       c10::intrusive_ptr<c10d::Store> store, const std::string& path, const std::string& reason,
                       const std::string& job, const std::string& mode, const std::string& switches, int shards,
                       std::vector<int> world_ranks, bool survivors, std::chrono::milliseconds timeout,
                       const std::string& log_prefix) {
             auto group = c10::make_intrusive<Staged>(
                 timeout, std::move(gloo), connection == nullptr ? nullptr : connection->take(), std::move(shard),
                 std::move(store), Decision{path, reason, job, mode, switches, shards, std::move(world_ranks), survivors},
                 log_to_stderr(log_prefix));
             remember(group);
             if (connection != nullptr) connection->notice().listen([&its = *group] { its.post(&run_failure_hook); });
             return group;
           }),
           py::kw_only(), py::arg("gloo"), py::arg("connection"), py::arg("shard"), py::arg("store"), py::arg("path"),
           py::arg("reason"), py::arg("job"), py::arg("mode"), py::arg("switches"), py::arg("shards"),
           py::arg("world_ranks"), py::arg("survivors"), py::arg("timeout"), py::arg("log_prefix"));
}

}  // namespace netsum::torch_backend
