#include "backend.h"

#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <comms/torchcomms/utils/Utils.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "netsum/version.h"

namespace py = pybind11;

namespace netsum::torchcomms_backend {
namespace {

c10d::ReduceOp c10d_op(const comms::ReduceOp& op) {
  using Type = comms::ReduceOp::RedOpType;
  switch (op.type()) {
    case Type::SUM:
      return c10d::ReduceOp::SUM;
    case Type::PRODUCT:
      return c10d::ReduceOp::PRODUCT;
    case Type::MIN:
      return c10d::ReduceOp::MIN;
    case Type::MAX:
      return c10d::ReduceOp::MAX;
    case Type::BAND:
      return c10d::ReduceOp::BAND;
    case Type::BOR:
      return c10d::ReduceOp::BOR;
    case Type::BXOR:
      return c10d::ReduceOp::BXOR;
    case Type::AVG:
      return c10d::ReduceOp::AVG;
    case Type::PREMUL_SUM:
      return std::visit([](const auto& factor) { return c10d::makeNCCLPreMulSum(factor); }, *op.factor());
  }
  throw std::invalid_argument(
      "netsum: this reduction of torchcomms is not supported: use SUM, AVG, MIN, MAX, PRODUCT or a bitwise one");
}

std::string text_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace

void Backend::init(at::Device device, const std::string& name, const comms::CommOptions& options) {
  if (group_) throw std::logic_error("netsum: the torchcomms communicator '" + name_ + "' is initialized already");
  if (Py_IsInitialized() == 0) {
    throw std::runtime_error(
        "netsum: the torchcomms communicator '" + name +
        "' needs a Python interpreter in its process, with netsum.torchcomms on its path: create it from Python");
  }
  device_ = device;
  name_ = name;
  options_ = options;
  if (rank_ < 0) {
    std::tie(rank_, size_) = comms::query_ranksize();
    world_rank_ = rank_;
  }
  const py::gil_scoped_acquire lock;
  const py::object build = py::module_::import("netsum.torchcomms").attr("build");
  const py::tuple built = build(std::exchange(options_.store, nullptr), name_, rank_, size_, world_rank_, options_.timeout);
  group_ = built[0].cast<c10::intrusive_ptr<c10d::Backend>>();
  store_ = built[1].cast<c10::intrusive_ptr<c10d::Store>>();
}

void Backend::finalize() {
  static_cast<void>(group());
  group_.reset();
  store_.reset();
}

std::string_view Backend::getBackendVersion() const {
  return NETSUM_VERSION;
}

void Backend::abort() {
  if (!group_ || aborted_.exchange(true)) return;
  runAbortHooks();
  const py::gil_scoped_acquire lock;
  py::cast(group_).attr("abort")();
}

std::shared_ptr<comms::TorchCommBackend> Backend::split(const std::vector<int>& ranks, const std::string& name,
                                                        const comms::CommOptions& options) {
  static_cast<void>(group());
  const int number = splits_++;
  if (ranks.empty()) return nullptr;
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  if (own == ranks.end() || sorted.front() < 0 || sorted.back() >= size_ ||
      std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    throw std::runtime_error("netsum: rank " + std::to_string(rank_) + " of the torchcomms communicator '" + name_ +
                             "' asked to split off the ranks " + text_of(ranks) + ": give different ranks below " +
                             std::to_string(size_) + ", its own among them, or none");
  }
  auto part = std::make_shared<Backend>();
  part->rank_ = static_cast<int>(own - ranks.begin());
  part->size_ = static_cast<int>(ranks.size());
  part->world_rank_ = world_rank_;
  comms::CommOptions its = options;
  its.store = c10::make_intrusive<c10d::PrefixStore>(std::to_string(number) + "/" + std::to_string(sorted.front()), store_);
  part->init(device_, name, its);
  return part;
}

c10d::Backend& Backend::group() const {
  if (!group_) {
    throw std::runtime_error("netsum: the torchcomms communicator '" + name_ +
                             "' is not initialized, or finalized: use new_comm()");
  }
  return *group_;
}

auto Backend::collective(c10::intrusive_ptr<c10d::Work> work, bool async, Milliseconds timeout) const -> WorkPtr {
  auto its = Work::of_collective(std::move(work), device_, timeout);
  if (!async) its->wait();
  return its;
}

auto Backend::messages(Work::Works works, bool async, Milliseconds timeout) const -> WorkPtr {
  auto its = Work::of_messages(std::move(works), device_, timeout);
  if (!async) its->wait();
  return its;
}

auto Backend::send(const at::Tensor& tensor, int to, bool async, const comms::SendOptions& options) -> WorkPtr {
  Tensors tensors{tensor};
  return messages({group().send(tensors, to, options.tag)}, async, timeout_of(options));
}

auto Backend::recv(at::Tensor& tensor, int from, bool async, const comms::RecvOptions& options) -> WorkPtr {
  Tensors tensors{tensor};
  return messages({group().recv(tensors, from, options.tag)}, async, timeout_of(options));
}

auto Backend::batch_op_issue(const std::vector<comms::BatchSendRecv::P2POp>& messages, bool async,
                             const comms::BatchP2POptions& options) -> WorkPtr {
  Work::Works works;
  for (const auto& each : messages) {
    Tensors tensors{each.tensor};
    const bool sends = each.type == comms::BatchSendRecv::P2POp::OpType::SEND;
    works.push_back(sends ? group().send(tensors, each.peer, 0) : group().recv(tensors, each.peer, 0));
  }
  return this->messages(std::move(works), async, timeout_of(options));
}

auto Backend::broadcast(at::Tensor& tensor, int root, bool async, const comms::BroadcastOptions& options) -> WorkPtr {
  c10d::BroadcastOptions its;
  its.rootRank = root;
  its.timeout = timeout_of(options);
  Tensors tensors{tensor};
  return collective(group().broadcast(tensors, its), async, its.timeout);
}

auto Backend::all_reduce(at::Tensor& tensor, const comms::ReduceOp& op, bool async, const comms::AllReduceOptions& options)
    -> WorkPtr {
  c10d::AllreduceOptions its;
  its.reduceOp = c10d_op(op);
  its.timeout = timeout_of(options);
  Tensors tensors{tensor};
  return collective(group().allreduce(tensors, its), async, its.timeout);
}

auto Backend::reduce(const at::Tensor& tensor, int root, const comms::ReduceOp& op, bool async,
                     const comms::ReduceOptions& options) -> WorkPtr {
  c10d::ReduceOptions its;
  its.reduceOp = c10d_op(op);
  its.rootRank = root;
  its.timeout = timeout_of(options);
  Tensors tensors{tensor};
  return collective(group().reduce(tensors, its), async, its.timeout);
}

auto Backend::all_gather(const Tensors& outputs, const at::Tensor& input, bool async, const comms::AllGatherOptions& options)
    -> WorkPtr {
  c10d::AllgatherOptions its;
  its.timeout = timeout_of(options);
  std::vector<Tensors> lists{outputs};
  Tensors inputs{input};
  return collective(group().allgather(lists, inputs, its), async, its.timeout);
}

auto Backend::all_gather_single(at::Tensor& output, const at::Tensor& input, bool async,
                                const comms::AllGatherSingleOptions& options) -> WorkPtr {
  c10d::AllgatherOptions its;
  its.timeout = timeout_of(options);
  at::Tensor from = input;
  return collective(group()._allgather_base(output, from, its), async, its.timeout);
}

auto Backend::reduce_scatter(at::Tensor& output, const Tensors& inputs, const comms::ReduceOp& op, bool async,
                             const comms::ReduceScatterOptions& options) -> WorkPtr {
  c10d::ReduceScatterOptions its;
  its.reduceOp = c10d_op(op);
  its.timeout = timeout_of(options);
  Tensors outputs{output};
  std::vector<Tensors> lists{inputs};
  return collective(group().reduce_scatter(outputs, lists, its), async, its.timeout);
}

auto Backend::reduce_scatter_single(at::Tensor& output, const at::Tensor& input, const comms::ReduceOp& op, bool async,
                                    const comms::ReduceScatterSingleOptions& options) -> WorkPtr {
  c10d::ReduceScatterOptions its;
  its.reduceOp = c10d_op(op);
  its.timeout = timeout_of(options);
  at::Tensor from = input;
  return collective(group()._reduce_scatter_base(output, from, its), async, its.timeout);
}

auto Backend::exchange(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                       std::vector<int64_t> input_splits, bool async, Milliseconds timeout) const -> WorkPtr {
  c10d::AllToAllOptions its;
  its.timeout = timeout;
  return collective(group().alltoall_base(output, input, output_splits, input_splits, its), async, timeout);
}

auto Backend::all_to_all_single(at::Tensor& output, const at::Tensor& input, bool async,
                                const comms::AllToAllSingleOptions& options) -> WorkPtr {
  return exchange(output, input, {}, {}, async, timeout_of(options));
}

auto Backend::all_to_all_v_single(at::Tensor& output, const at::Tensor& input, const std::vector<uint64_t>& output_splits,
                                  const std::vector<uint64_t>& input_splits, bool async,
                                  const comms::AllToAllvSingleOptions& options) -> WorkPtr {
  return exchange(output, input, {output_splits.begin(), output_splits.end()}, {input_splits.begin(), input_splits.end()},
                  async, timeout_of(options));
}

auto Backend::all_to_all(const Tensors& outputs, const Tensors& inputs, bool async, const comms::AllToAllOptions& options)
    -> WorkPtr {
  c10d::AllToAllOptions its;
  its.timeout = timeout_of(options);
  Tensors to = outputs, from = inputs;
  return collective(group().alltoall(to, from, its), async, its.timeout);
}

auto Backend::barrier(bool async, const comms::BarrierOptions& options) -> WorkPtr {
  c10d::BarrierOptions its;
  its.timeout = timeout_of(options);
  return collective(group().barrier(its), async, its.timeout);
}

auto Backend::scatter(at::Tensor& output, const Tensors& inputs, int root, bool async, const comms::ScatterOptions& options)
    -> WorkPtr {
  c10d::ScatterOptions its;
  its.rootRank = root;
  its.timeout = timeout_of(options);
  Tensors outputs{output};
  std::vector<Tensors> lists;
  if (rank_ == root) lists.push_back(inputs);
  return collective(group().scatter(outputs, lists, its), async, its.timeout);
}

auto Backend::gather(const Tensors& outputs, const at::Tensor& input, int root, bool async,
                     const comms::GatherOptions& options) -> WorkPtr {
  c10d::GatherOptions its;
  its.rootRank = root;
  its.timeout = timeout_of(options);
  std::vector<Tensors> lists;
  if (rank_ == root) lists.push_back(outputs);
  Tensors inputs{input};
  return collective(group().gather(lists, inputs, its), async, its.timeout);
}

}  // namespace netsum::torchcomms_backend

// What torchcomms looks for in the library that TORCHCOMMS_BACKEND_LIB_PATH_NETSUM names.
extern "C" __attribute__((visibility("default"))) torch::comms::DynamicLoaderInterface create_dynamic_loader_netsum() {
  using netsum::torchcomms_backend::Backend;
  return {[]() -> torch::comms::TorchCommBackend* { return new Backend; },
          [](torch::comms::TorchCommBackend* backend) { delete backend; },
          [] { return torch::comms::TORCHCOMM_BACKEND_ABI_VERSION; }};
}
