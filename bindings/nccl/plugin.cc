// The tables that NCCL looks up, and the entry points behind them, which turn NCCL's arguments into calls of Group and
// Connection. Where NETSUM_NCCL_NET names another plugin, init() fills the net half's table with that plugin's functions.
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "bindings/nccl/abi.h"
#include "bindings/nccl/devices.h"
#include "bindings/nccl/external.h"
#include "bindings/nccl/force.h"
#include "bindings/nccl/forward.h"
#include "bindings/nccl/group.h"
#include "bindings/nccl/log.h"
#include "bindings/nccl/net_settings.h"
#include "bindings/nccl/tcp.h"
#include "bindings/nccl/types.h"
#include "bindings/settings/settings.h"

extern "C" {
extern netsum::nccl::NetV8 ncclNetPlugin_v8;
extern netsum::nccl::NetV9 ncclNetPlugin_v9;
extern netsum::nccl::NetV10 ncclNetPlugin_v10;
extern netsum::nccl::NetV11 ncclNetPlugin_v11;
extern netsum::nccl::NetV12 ncclNetPlugin_v12;
extern const netsum::nccl::CollNetV8 ncclCollNetPlugin_v8;
extern const netsum::nccl::CollNetV9 ncclCollNetPlugin_v9;
extern const netsum::nccl::CollNetV10 ncclCollNetPlugin_v10;
extern const netsum::nccl::CollNetV11 ncclCollNetPlugin_v11;
extern const netsum::nccl::CollNetV12 ncclCollNetPlugin_v12;
}

namespace netsum::nccl {
namespace {

constexpr const char* plugin_name = "netsum";
// NCCL itself waits for ever; what ends jobs that hang is their framework, which shall come first.
constexpr std::chrono::milliseconds patience_with_operations = std::chrono::minutes(30);

settings::Settings read_settings() {
  settings::Settings by_default;
  by_default.options.operation_deadline = patience_with_operations;
  return settings::read(&settings::from_environment, by_default);
}

template <class Handle>
void write_handle(void* to, const Handle& handle) {
  std::memset(to, 0, handle_bytes);
  std::memcpy(to, &handle, sizeof handle);
}

template <class Handle>
Handle read_handle(const void* from) {
  Handle handle;
  std::memcpy(&handle, from, sizeof handle);
  return handle;
}

// ---- Devices: the same list in both halves. NCCL takes a CollNet device and a network device of one name for one, and
// counts on their having one number.

template <class Properties>
Result net_properties(int number, Properties* properties) {
  return guarded("getProperties", [&] {
    const Device& device = device_at(number);
    Properties all{};
    all.name = device.name.c_str();
    all.pciPath = device.pci_path.empty() ? nullptr : device.pci_path.c_str();
    all.guid = device.index;
    all.ptrSupport = host_memory;
    all.speed = device.mbit_per_second;
    all.maxComms = 65536;
    all.maxRecvs = 1;
    if constexpr (requires { all.vProps; }) {
      all.vProps.ndevs = 1;
      all.vProps.devs[0] = number;
      all.maxP2pBytes = most_bytes_of_a_message;
      all.maxCollBytes = most_bytes_of_a_call;
    }
    if constexpr (requires { all.maxMultiRequestSize; }) all.maxMultiRequestSize = 1;
    if constexpr (requires { all.railId; }) all.railId = all.planeId = undefined;
    *properties = all;
  });
}

Result register_memory(void*, void*, std::size_t, int memory, void** registration) {
  return guarded("regMr", [&] {
    *registration = nullptr;
    if (memory != host_memory) {
      throw Error(ErrorCode::bad_argument, "only host memory can be registered, as getProperties() says");
    }
  });
}
Result register_dma_buf(void*, void*, std::size_t, int, std::uint64_t, int, void** registration) {
  return guarded("regMrDmaBuf", [&] {
    *registration = nullptr;
    throw Error(ErrorCode::bad_argument, "DMA-BUF memory cannot be registered, as getProperties() says");
  });
}
Result deregister_memory(void*, void*) {
  return Result::success;
}
Result finalize(void*) {
  return Result::success;
}

// ---- The net half.

template <class Table>
inline constexpr Table* exported = nullptr;
template <>
inline constexpr NetV8* exported<NetV8> = &ncclNetPlugin_v8;
template <>
inline constexpr NetV9* exported<NetV9> = &ncclNetPlugin_v9;
template <>
inline constexpr NetV10* exported<NetV10> = &ncclNetPlugin_v10;
template <>
inline constexpr NetV11* exported<NetV11> = &ncclNetPlugin_v11;
template <>
inline constexpr NetV12* exported<NetV12> = &ncclNetPlugin_v12;

void begin_log(Logger logger) {
  log_through(logger);
}
void begin_log(Logger logger, Profiler) {
  log_through(logger);
}
void begin_log(void** context, std::uint64_t, void*, Logger logger, Profiler) {
  *context = nullptr;
  log_through(logger);
}

template <class Table, class Init = decltype(Table::init)>
class NetInit;
template <class Table, class... Arguments>
class NetInit<Table, Result (*)(Arguments...)> {
 public:
  static Result call(Arguments... arguments) {
    begin_log(arguments...);
    Result result = Result::success;
    const Result own = guarded("init", [&] {
      const std::string net = chosen_net();
      if (net.empty()) {
        static_cast<void>(devices());
        static_cast<void>(read_tcp_settings(read_settings()));
      } else {
        result = init_of(net)(arguments...);
      }
    });
    return own == Result::success ? result : own;
  }

 private:
  // The other plugin's. Other communicators may be using the table: it is filled once.
  static decltype(Table::init) init_of(const std::string& net) {
    static std::mutex mutex;
    static decltype(Table::init) init = nullptr;
    const std::lock_guard lock(mutex);
    if (init == nullptr) {
      init = forward<Table, NetV12, NetV11, NetV10, NetV9, NetV8>(*exported<Table>, ExternalNet::load(net));
    }
    return init;
  }
};

Result net_devices(int* count) {
  return guarded("devices", [&] { *count = static_cast<int>(devices().size()); });
}

Result net_listen(int device, void* handle, void** listener) {
  return guarded("listen", [&] {
    *listener = nullptr;
    check_sockets();
    auto made = std::make_unique<TcpListener>(device_at(device), read_tcp_settings(read_settings()));
    write_handle(handle, made->handle());
    *listener = made.release();
  });
}
Result net_listen(void*, int device, void* handle, void** listener) {
  return net_listen(device, handle, listener);
}

Result net_connect(int device, void* handle, void** sender, void**) {
  return guarded("connect", [&] {
    *sender = nullptr;
    check_sockets();
    auto own = read_handle<TcpHandle>(handle);
    if (own.attempt == 0) begin_connecting(device_at(device), own, read_tcp_settings(read_settings()));
    *sender = go_on_connecting(own).release();
    write_handle(handle, own);
  });
}
Result net_connect(int device, void*, void* handle, void** sender, void** offload) {
  return net_connect(device, handle, sender, offload);
}
Result net_connect(void*, int device, void* handle, void** sender, void** offload) {
  return net_connect(device, handle, sender, offload);
}

Result net_accept(void* listener, void** receiver, void**) {
  return guarded("accept", [&] {
    *receiver = nullptr;
    check_sockets();
    *receiver = static_cast<TcpListener*>(listener)->accept().release();
  });
}

template <class Size>
Result isend(void* sender, void* data, Size bytes, int tag, void*, void** request) {
  auto& connection = *static_cast<Sender*>(sender);
  return guarded("isend", connection.has_told, [&] {
    *request = nullptr;
    check_sockets();
    *request = connection.begin(data, static_cast<std::size_t>(bytes), tag);
  });
}
Result isend(void* sender, void* data, std::size_t bytes, int tag, void* registration, void*, void** request) {
  return isend<std::size_t>(sender, data, bytes, tag, registration, request);
}

template <class Size>
Result irecv(void* receiver, int count, void** data, Size* bytes, int* tags, void**, void** request) {
  auto& connection = *static_cast<Receiver*>(receiver);
  return guarded("irecv", connection.has_told, [&] {
    *request = nullptr;
    if (count != 1) throw Error(ErrorCode::bad_argument, "only one receive per call is possible, as getProperties() says");
    check_sockets();
    *request = connection.begin(data[0], static_cast<std::size_t>(bytes[0]), tags[0]);
  });
}
Result irecv(void* receiver, int count, void** data, std::size_t* bytes, int* tags, void** registrations, void**,
             void** request) {
  return irecv<std::size_t>(receiver, count, data, bytes, tags, registrations, request);
}

// Host memory needs no flush: a null request has ended.
Result net_iflush(void*, int, void**, int*, void**, void** request) {
  *request = nullptr;
  return Result::success;
}

Result net_test(void* request, int* done, int* bytes) {
  *done = 0;
  auto& message = *static_cast<Message*>(request);
  return guarded("test", message.connection->has_told, [&] {
    if (!message.connection->test(message)) return;
    *done = 1;
    if (bytes != nullptr) *bytes = static_cast<int>(message.bytes);
  });
}

template <class Object>
Result destroy(void* object) {
  return guarded("close", [&] { delete static_cast<Object*>(object); });
}

// ---- The CollNet half.

// Whether CollNet is offered at all.
bool is_offered(const settings::Settings& settings) {
  if (settings.mode == settings::Mode::off) return false;
  if (!settings.options.aggregators.empty()) return true;
  if (settings.mode == settings::Mode::probe) return false;
  throw Error(ErrorCode::bad_argument, "NETSUM_MODE=force needs NETSUM_SWITCH=HOST:PORT[,...]");
}

// What goes wrong under NETSUM_MODE=force is also the sockets' end.
template <class Body>
void binding(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    if (settings::from_environment("NETSUM_MODE") == to_string(settings::Mode::force)) refuse_sockets(error.what());
    throw;
  }
}

Result coll_init(Logger logger) {
  log_through(logger);
  return guarded("CollNet init", [] {
    binding([] {
      const settings::Settings settings = read_settings();
      if (is_offered(settings) || settings.log == settings::LogLevel::off) return;
      log_line(LogLevel::info, std::string("netsum: no CollNet: ") +
                                   (settings.mode == settings::Mode::off ? "NETSUM_MODE=off" : "NETSUM_SWITCH is not set"));
    });
  });
}
Result coll_init(void** context, std::uint64_t, Logger logger) {
  *context = nullptr;
  return coll_init(logger);
}

// As many as the network has, which are the same ones.
int count_devices() {
  if (chosen_net().empty()) return static_cast<int>(devices().size());
  int count = 0;
  if (external_devices().devices(&count) != Result::success) {
    throw Error(ErrorCode::internal,
                "the network plugin of NETSUM_NCCL_NET could not list its devices: NCCL_DEBUG=INFO shows its own messages");
  }
  return count;
}

Result coll_devices(int* count) {
  return guarded("CollNet devices", [&] { *count = is_offered(read_settings()) ? count_devices() : 0; });
}

// Another plugin's device, by which NCCL finds CollNet's; but CollNet takes host memory, and shares nothing with that
// plugin.
template <class Properties>
Result coll_properties(int number, Properties* properties) {
  Result result = Result::success;
  const Result own = guarded("CollNet getProperties", [&] {
    if (chosen_net().empty()) {
      result = net_properties(number, properties);
      return;
    }
    NetPropertiesV12 theirs{};
    result = external_devices().getProperties(number, &theirs);
    if (result != Result::success) return;
    theirs.ptrSupport = host_memory;
    theirs.regIsGlobal = theirs.forceFlush = theirs.netDeviceType = theirs.netDeviceVersion = 0;
    theirs.maxRecvs = theirs.maxMultiRequestSize = 1;
    theirs.maxCollBytes = most_bytes_of_a_call;
    *properties = converted<Properties>(theirs, number);
  });
  return own == Result::success ? result : own;
}

Result coll_listen(int device, void* handle, void** listener) {
  return guarded("CollNet listen", [&] {
    *listener = nullptr;
    binding([&] {
      // Its number is all that matters: the aggregator's address decides about the way of the packets.
      if (const int count = count_devices(); device < 0 || device >= count) {
        throw Error(ErrorCode::bad_argument,
                    "device " + std::to_string(device) + " of " + std::to_string(count) + " network devices");
      }
      auto made = std::make_unique<GroupListener>(read_settings());
      write_handle(handle, made->handle());
      *listener = made.release();
    });
  });
}
Result coll_listen(void*, int device, void* handle, void** listener) {
  return coll_listen(device, handle, listener);
}

Result coll_connect(void** handles, int ranks, int rank, void* listener, void** group) {
  return guarded("CollNet connect", [&] {
    *group = nullptr;
    if (ranks < 1 || rank < 0 || rank >= ranks || listener == nullptr) {
      throw Error(ErrorCode::bad_argument, "rank " + std::to_string(rank) + " of " + std::to_string(ranks));
    }
    binding([&] {
      std::vector<GroupHandle> all;
      for (const void* each : std::span(handles, static_cast<std::size_t>(ranks))) {
        all.push_back(read_handle<GroupHandle>(each));
      }
      *group = new Group(*static_cast<GroupListener*>(listener), all, static_cast<std::uint32_t>(rank));
    });
  });
}

Result reduce_support(DataType type, RedOp op, int* supported) {
  *supported = reduction_of(type, op) ? 1 : 0;
  return Result::success;
}

template <class Size>
Result iallreduce(void* group, void* in, void* out, Size elements, DataType type, RedOp op, void*, void*, void** request) {
  auto& ours = *static_cast<Group*>(group);
  return guarded("iallreduce", ours.has_told, [&] {
    *request = nullptr;
    *request = ours.all_reduce(in, out, static_cast<std::size_t>(elements), supported(type, op));
  });
}

template <class Size>
std::vector<Piece> pieces_of(const NetSge<Size>* parts, int count) {
  std::vector<Piece> pieces;
  for (const NetSge<Size>& each : std::span(parts, static_cast<std::size_t>(count))) {
    pieces.emplace_back(static_cast<std::byte*>(each.address), static_cast<std::size_t>(each.size));
  }
  return pieces;
}

template <class Size>
Result iallgather(void* group, void* in, int out_parts, NetSge<Size>* out, std::size_t bytes_per_rank,
                  std::size_t window_offset, std::size_t window_bytes, void*, void** request) {
  auto& ours = *static_cast<Group*>(group);
  return guarded("iallgather", ours.has_told, [&] {
    *request = nullptr;
    *request = ours.all_gather(static_cast<std::byte*>(in), pieces_of(out, out_parts),
                               {bytes_per_rank, window_offset, window_bytes});
  });
}

template <class Size>
Result ireducescatter(void* group, int in_parts, NetSge<Size>* in, void* out, std::size_t bytes_per_rank,
                      std::size_t window_offset, std::size_t window_bytes, DataType type, RedOp op, void*, void** request) {
  auto& ours = *static_cast<Group*>(group);
  return guarded("ireducescatter", ours.has_told, [&] {
    *request = nullptr;
    *request = ours.reduce_scatter(pieces_of(in, in_parts), static_cast<std::byte*>(out),
                                   {bytes_per_rank, window_offset, window_bytes}, supported(type, op));
  });
}

Result coll_iflush(void*, void*, int, void*, void** request) {
  *request = nullptr;
  return Result::success;
}

Result coll_test(void* request, int* done, int* bytes) {
  *done = 0;
  auto& call = *static_cast<Call*>(request);
  return guarded("CollNet test", call.group->has_told, [&] {
    if (!call.group->test(call)) return;
    *done = 1;
    if (bytes != nullptr) *bytes = static_cast<int>(call.bytes);
  });
}

// ---- The tables. Each member's type says which overload it takes. What stays null merges network devices, or belongs to
// networks that work without the host.

template <class Table>
constexpr Table net_table() {
  Table table{};
  table.name = plugin_name;
  table.init = &NetInit<Table>::call;
  table.devices = &net_devices;
  table.getProperties = &net_properties;
  table.listen = &net_listen;
  table.connect = &net_connect;
  table.accept = &net_accept;
  table.regMr = &register_memory;
  table.regMrDmaBuf = &register_dma_buf;
  table.deregMr = &deregister_memory;
  table.isend = &isend;
  table.irecv = &irecv;
  table.iflush = &net_iflush;
  table.test = &net_test;
  table.closeSend = &destroy<Sender>;
  table.closeRecv = &destroy<Receiver>;
  table.closeListen = &destroy<TcpListener>;
  if constexpr (requires { table.finalize; }) table.finalize = &finalize;
  return table;
}

template <class Table>
constexpr Table coll_table() {
  Table table{};
  table.name = plugin_name;
  table.init = &coll_init;
  table.devices = &coll_devices;
  table.getProperties = &coll_properties;
  table.listen = &coll_listen;
  table.connect = &coll_connect;
  table.reduceSupport = &reduce_support;
  table.regMr = &register_memory;
  table.regMrDmaBuf = &register_dma_buf;
  table.deregMr = &deregister_memory;
  table.iallreduce = &iallreduce;
  table.iallgather = &iallgather;
  table.ireducescatter = &ireducescatter;
  table.iflush = &coll_iflush;
  table.test = &coll_test;
  table.closeColl = &destroy<Group>;
  table.closeListen = &destroy<GroupListener>;
  if constexpr (requires { table.finalize; }) table.finalize = &finalize;
  return table;
}

}  // namespace
}  // namespace netsum::nccl

using namespace netsum::nccl;
constinit NetV8 ncclNetPlugin_v8 = net_table<NetV8>();
constinit NetV9 ncclNetPlugin_v9 = net_table<NetV9>();
constinit NetV10 ncclNetPlugin_v10 = net_table<NetV10>();
constinit NetV11 ncclNetPlugin_v11 = net_table<NetV11>();
constinit NetV12 ncclNetPlugin_v12 = net_table<NetV12>();
constexpr CollNetV8 ncclCollNetPlugin_v8 = coll_table<CollNetV8>();
constexpr CollNetV9 ncclCollNetPlugin_v9 = coll_table<CollNetV9>();
constexpr CollNetV10 ncclCollNetPlugin_v10 = coll_table<CollNetV10>();
constexpr CollNetV11 ncclCollNetPlugin_v11 = coll_table<CollNetV11>();
constexpr CollNetV12 ncclCollNetPlugin_v12 = coll_table<CollNetV12>();
