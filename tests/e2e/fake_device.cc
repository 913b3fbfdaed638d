// A device for torch without hardware, as the extension module `fake_device`: PyTorch's "privateuseone", with memory,
// streams and events of its own. One thread is the device. It carries out what is given to its streams late, and in any
// order that the streams and events leave open. Its memory is mapped twice: where tensors are, nobody may read or write, so
// a host that takes a device's pointer for its own dies at once. Freed memory is overwritten when the stream that it was
// allocated on gets there, as a caching allocator may use it again then. Operations other than copies and fill_later() are
// computed by the host.
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>
#include <torch/version.h>

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace netsum::testing {
namespace {

constexpr auto type = c10::DeviceType::PrivateUse1;
constexpr std::size_t arena_bytes = std::size_t{1} << 28;
constexpr std::size_t alignment = 64;
constexpr std::size_t stream_count = 9;

struct Event {
  std::uint64_t recorded = 0, happened = 0;  // versions
};

class FakeDevice {
 public:
  FakeDevice() {
    const int file = memfd_create("fake_device", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, arena_bytes) != 0) throw std::runtime_error("fake device: no memory");
    outside_ = map(file, PROT_NONE);
    inside_ = map(file, PROT_READ | PROT_WRITE);
    close(file);
    free_[0] = arena_bytes;
    std::thread([this] { run(); }).detach();
  }

  std::byte* inside(const void* outside) { return inside_ + (static_cast<const std::byte*>(outside) - outside_); }

  void* allocate(std::size_t bytes, c10::StreamId stream) {
    bytes = (bytes + alignment) / alignment * alignment;
    const std::lock_guard lock(mutex_);
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < bytes) continue;
      const std::size_t at = it->first, left = it->second - bytes;
      free_.erase(it);
      if (left > 0) free_[at + bytes] = left;
      used_[at] = {bytes, stream};
      std::memset(inside_ + at, 0xA5, bytes);
      return outside_ + at;
    }
    throw std::runtime_error("fake device: its memory is full");
  }

  void free(void* outside) {
    const auto at = static_cast<std::size_t>(static_cast<std::byte*>(outside) - outside_);
    std::unique_lock lock(mutex_);
    const Block block = used_.at(at);
    lock.unlock();
    give(block.stream, [this, at, block] {
      const std::lock_guard locked(mutex_);
      std::memset(inside_ + at, 0x5A, block.bytes);
      free_[at] = block.bytes;
      used_.erase(at);
    });
  }

  // The so manieth of a host's calls from now on fails: events recorded and waited for, and copies.
  void fail_in(int calls) { until_failure_ = calls; }
  void look_for_failure() {
    if (until_failure_ > 0 && --until_failure_ == 0) TORCH_CHECK(false, "the fake device was told to fail");
  }

  void give(c10::StreamId stream, std::function<void()> what) { push(stream, {std::move(what), nullptr, 0}); }

  void record(Event* event, c10::StreamId stream) {
    std::uint64_t version = 0;
    {
      const std::lock_guard lock(mutex_);
      version = ++event->recorded;
    }
    give(stream, [this, event, version] {
      const std::lock_guard lock(mutex_);
      event->happened = std::max(event->happened, version);
    });
  }
  void block(Event* event, c10::StreamId stream) {
    std::unique_lock lock(mutex_);
    const std::uint64_t version = event->recorded;
    lock.unlock();
    push(stream, {[] {}, event, version});
  }
  bool has_happened(const Event* event) {
    const std::lock_guard lock(mutex_);
    return event->happened == event->recorded;
  }

  void synchronize(c10::StreamId stream) {
    std::unique_lock lock(mutex_);
    progress_.wait(lock, [&] { return streams_[static_cast<std::size_t>(stream)].empty() && running_ != stream; });
  }
  bool is_idle(c10::StreamId stream) {
    const std::lock_guard lock(mutex_);
    return streams_[static_cast<std::size_t>(stream)].empty() && running_ != stream;
  }
  // Carries out nothing while it is held.
  void hold(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    progress_.notify_all();
  }

 private:
  struct Task {
    std::function<void()> what;
    const Event* after;
    std::uint64_t version;
  };

  struct Block {
    std::size_t bytes;
    c10::StreamId stream;  // that it was allocated on
  };

  static std::byte* map(int file, int protection) {
    void* const at = mmap(nullptr, arena_bytes, protection, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) throw std::runtime_error("fake device: no memory");
    return static_cast<std::byte*>(at);
  }

  void push(c10::StreamId stream, Task task) {
    const std::lock_guard lock(mutex_);
    streams_[static_cast<std::size_t>(stream)].push_back(std::move(task));
    progress_.notify_all();
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      std::vector<std::size_t> able;
      for (std::size_t i = 0; i < stream_count && !held_; ++i) {
        if (streams_[i].empty()) continue;
        const Task& next = streams_[i].front();
        if (next.after == nullptr || next.after->happened >= next.version) able.push_back(i);
      }
      if (able.empty()) {
        progress_.wait(lock);
        continue;
      }
      const std::size_t chosen = able[std::uniform_int_distribution<std::size_t>(0, able.size() - 1)(random_)];
      Task task = std::move(streams_[chosen].front());
      streams_[chosen].pop_front();
      running_ = static_cast<c10::StreamId>(chosen);
      lock.unlock();
      task.what();
      lock.lock();
      running_ = -1;
      progress_.notify_all();
    }
  }

  std::byte *outside_ = nullptr, *inside_ = nullptr;
  std::mutex mutex_;  // guards the rest
  std::condition_variable progress_;
  std::map<std::size_t, std::size_t> free_;  // where, how long
  std::map<std::size_t, Block> used_;
  std::deque<Task> streams_[stream_count];
  c10::StreamId running_ = -1;
  bool held_ = false;
  std::atomic<int> until_failure_{0};
  std::mt19937 random_{static_cast<unsigned>(getpid())};
};

FakeDevice& device() {
  static auto* const it = new FakeDevice;  // its thread never ends
  return *it;
}

thread_local c10::StreamId current_stream = 0;

c10::Device only_device() {
  return {type, 0};
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return testing::type; }
  c10::Device exchangeDevice(c10::Device) const override { return only_device(); }
  c10::Device getDevice() const override { return only_device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const noexcept override { return stream(current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    static std::atomic<unsigned> next{0};
    return stream(1 + next++ % (stream_count - 1));
  }
  c10::Stream exchangeStream(c10::Stream to) const noexcept override {
    return stream(std::exchange(current_stream, to.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  // An event is never freed: a stream may still come to it.
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void record(void** event, const c10::Stream& on, const c10::DeviceIndex, const c10::EventFlag) const override {
    device().look_for_failure();
    if (*event == nullptr) *event = new Event;
    device().record(static_cast<Event*>(*event), on.id());
  }
  void block(void* event, const c10::Stream& on) const override {
    device().look_for_failure();
    if (event != nullptr) device().block(static_cast<Event*>(event), on.id());
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || device().has_happened(static_cast<Event*>(event));
  }
  bool queryStream(const c10::Stream& on) const override { return device().is_idle(on.id()); }
  void synchronizeStream(const c10::Stream& on) const override { device().synchronize(on.id()); }

 private:
  static c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, only_device(), id); }
};

struct Allocator final : c10::Allocator {
#if TORCH_VERSION_MAJOR >= 2
  c10::DataPtr allocate(std::size_t bytes) override {
    return take(bytes);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(device().inside(to), device().inside(from), bytes);
  }
#else
  c10::DataPtr allocate(std::size_t bytes) const override {
    return take(bytes);
  }
#endif
  static c10::DataPtr take(std::size_t bytes) {
    void* const memory = device().allocate(bytes, current_stream);
    return {memory, memory, [](void* it) { device().free(it); }, only_device()};
  }
};
Allocator allocator;
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, c10::optional<at::ScalarType> dtype,
                         c10::optional<at::Layout>, c10::optional<at::Device>, c10::optional<bool>) {
  const auto meta = c10::scalarTypeToTypeMeta(dtype.value_or(at::kFloat));
  std::size_t elements = 1;
  for (std::size_t i = 0; i < size.size(); ++i) {
    elements = size[i] == 0 ? 0 : elements + static_cast<std::size_t>((size[i] - 1) * stride[i]);
    if (elements == 0) break;
  }
  const std::size_t bytes = elements * meta.itemsize();
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, allocator.allocate(bytes),
                                                       &allocator, /*resizable=*/true);
  auto tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), meta);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return tensor;
}

at::Tensor empty(c10::IntArrayRef size, c10::optional<at::ScalarType> dtype, c10::optional<at::Layout> layout,
                 c10::optional<at::Device> where, c10::optional<bool> pinned, c10::optional<at::MemoryFormat>) {
  std::vector<std::int64_t> stride(size.size(), 1);
  for (std::size_t i = size.size(); i-- > 1;) stride[i - 1] = stride[i] * std::max<std::int64_t>(size[i], 1);
  return empty_strided(size, stride, dtype, layout, where, pinned);
}

void copy_bytes(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  std::byte* const source =
      from.device().is_cpu() ? static_cast<std::byte*>(from.data_ptr()) : device().inside(from.data_ptr());
  std::byte* const target = to.device().is_cpu() ? static_cast<std::byte*>(to.data_ptr()) : device().inside(to.data_ptr());
  const auto stream = current_stream;
  device().give(stream, [source, target, bytes = from.nbytes()] {
    if (bytes > 0) std::memcpy(target, source, bytes);
  });
  if (!non_blocking) device().synchronize(stream);
}

// Both dense and of one type: at once. Others through dense tensors of the host.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  device().look_for_failure();
  if (from.scalar_type() == to.scalar_type() && from.is_contiguous() && to.is_contiguous() && from.sizes() == to.sizes()) {
    copy_bytes(from, to, non_blocking);
    return to;
  }
  const auto whole = [](const at::Tensor& tensor) {  // the storage behind a tensor, at the host
    at::Tensor host = at::empty({static_cast<std::int64_t>(tensor.storage().nbytes() / tensor.element_size())},
                                at::TensorOptions().dtype(tensor.scalar_type()));
    at::Tensor flat = at::native::as_strided_tensorimpl(tensor, host.sizes(), {1}, 0);
    copy_bytes(flat, host, false);
    return host.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  };
  const at::Tensor source = from.device().is_cpu() ? from : whole(from);
  if (to.device().is_cpu()) {
    to.copy_(source);
    return to;
  }
  at::Tensor target = whole(to);
  target.copy_(source);
  const std::int64_t elements = static_cast<std::int64_t>(to.storage().nbytes() / to.element_size());
  copy_bytes(target.as_strided({elements}, {1}, 0), at::native::as_strided_tensorimpl(to, {elements}, {1}, 0), false);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) {
    const std::size_t bytes = from.numel() * to.element_size();
    c10::StorageImpl* const storage = to.storage().unsafeGetStorageImpl();
    if (storage->nbytes() < bytes) {
      storage->set_data_ptr_noswap(allocator.allocate(bytes));
      storage->set_nbytes(bytes);
    }
    to.unsafeGetTensorImpl()->set_sizes_contiguous(from.sizes());
  }
  return copy_from(from, to, false);
}

at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                      c10::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
at::Tensor view(const at::Tensor& self, c10::IntArrayRef size) {
  return at::native::view(self, size);
}
at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

// As of a GPU's tensors: both are there.
bool equal(const at::Tensor& one, const at::Tensor& other) {
  TORCH_CHECK(one.device() == other.device(), "Expected all tensors to be on the same device");
  return at::equal(one.cpu(), other.cpu());
}

void by_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("equal", &equal);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&by_host>());
}

// torch 1.13 to 2.6 have it for every other device.
TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

// Of float32, by the device, on the current stream.
void fill_later(const at::Tensor& tensor, float value) {
  auto* const to = reinterpret_cast<float*>(device().inside(tensor.data_ptr()));
  device().give(current_stream, [to, value, elements = tensor.numel()] { std::fill(to, to + elements, value); });
}

}  // namespace
}  // namespace netsum::testing

PYBIND11_MODULE(fake_device, module) {
  using namespace netsum::testing;
  module.def("fill_later", &fill_later);
  module.def(
      "synchronize_all",
      [] {
        for (std::size_t stream = 0; stream < stream_count; ++stream) {
          device().synchronize(static_cast<c10::StreamId>(stream));
        }
      },
      pybind11::call_guard<pybind11::gil_scoped_release>());
  module.def("hold", [](bool held) { device().hold(held); });
  module.def("fail_in", [](int calls) { device().fail_in(calls); });
  module.def(
      "synchronize", [] { device().synchronize(current_stream); }, pybind11::call_guard<pybind11::gil_scoped_release>());
}
