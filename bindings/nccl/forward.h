// Tables of NCCL's interface that hand on another plugin's, of the same version or an older one. What both versions declare
// alike is the other plugin's own function.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include "bindings/nccl/abi.h"
#include "bindings/nccl/external.h"
#include "bindings/nccl/force.h"
#include "bindings/nccl/log.h"

namespace netsum::nccl {

// What networks had before they could say so.
inline constexpr std::size_t most_bytes_of_a_message = std::size_t{1} << 30;
inline constexpr std::size_t most_bytes_of_a_call = std::size_t{512} << 20;

template <class Table>
inline constexpr int version_of = 0;
template <>
inline constexpr int version_of<NetV8> = 8;
template <>
inline constexpr int version_of<NetV9> = 9;
template <>
inline constexpr int version_of<NetV10> = 10;
template <>
inline constexpr int version_of<NetV11> = 11;
template <>
inline constexpr int version_of<NetV12> = 12;
inline constexpr int first_with_context = 11;

template <class Function>
struct PropertiesOf;
template <class Properties>
struct PropertiesOf<Result (*)(int, Properties*)> {
  using Type = Properties;
};

// Properties of another version; what `from` lacks has the value that NCCL assumes for it.
template <class To, class From>
To converted(const From& from, int device) {
  To to{};
  to.name = from.name;
  to.pciPath = from.pciPath;
  to.guid = from.guid;
  to.ptrSupport = from.ptrSupport;
  to.regIsGlobal = from.regIsGlobal;
  to.speed = from.speed;
  to.port = from.port;
  to.latency = from.latency;
  to.maxComms = from.maxComms;
  to.maxRecvs = from.maxRecvs;
  to.netDeviceType = from.netDeviceType;
  to.netDeviceVersion = from.netDeviceVersion;
  if constexpr (requires { to.vProps; }) {
    to.vProps.ndevs = 1;
    to.vProps.devs[0] = device;
    to.maxP2pBytes = most_bytes_of_a_message;
    to.maxCollBytes = most_bytes_of_a_call;
    if constexpr (requires { from.vProps; }) {
      to.forceFlush = from.forceFlush;
      to.maxP2pBytes = from.maxP2pBytes;
      to.maxCollBytes = from.maxCollBytes;
      const std::size_t most = std::min(to.vProps.devs.size(), from.vProps.devs.size());
      to.vProps.ndevs = std::clamp(from.vProps.ndevs, 0, static_cast<int>(most));
      std::copy_n(from.vProps.devs.begin(), to.vProps.ndevs, to.vProps.devs.begin());
    }
  }
  if constexpr (requires { to.maxMultiRequestSize; }) {
    to.maxMultiRequestSize = 1;
    if constexpr (requires { from.maxMultiRequestSize; }) to.maxMultiRequestSize = from.maxMultiRequestSize;
  }
  if constexpr (requires { to.railId; }) {
    to.railId = to.planeId = undefined;
    if constexpr (requires { from.railId; }) {
      to.railId = from.railId;
      to.planeId = from.planeId;
    }
  }
  return to;
}

// The table To, by what a plugin has in its table From. The arguments of the overloads tell the versions apart.
template <class To, class From>
class Forwarded {
 public:
  // What To's init() has to call.
  static decltype(To::init) fill(To& to, const void* table) {
    from = static_cast<const From*>(table);
    to.devices = from->devices;
    to.getProperties = &properties;
    to.listen = &listen;
    to.connect = &connect;
    to.accept = &accept;
    to.regMr = from->regMr;
    to.regMrDmaBuf = from->regMrDmaBuf;
    to.deregMr = from->deregMr;
    to.isend = &isend;
    to.irecv = &irecv;
    to.iflush = from->iflush;
    to.test = from->test;
    to.closeSend = from->closeSend;
    to.closeRecv = from->closeRecv;
    to.closeListen = from->closeListen;
    to.getDeviceMr = from->getDeviceMr;
    to.irecvConsumed = from->irecvConsumed;
    // NCCL asks whether these are null.
    if constexpr (requires { from->makeVDevice; }) {
      if (from->makeVDevice != nullptr) to.makeVDevice = &make_virtual_device;
    }
    if constexpr (has_context<To>) {
      to.finalize = &finalize;
      if constexpr (has_context<From>) to.setNetAttr = from->setNetAttr;
    }
    set_external_devices({from->devices, &newest_properties});
    return &init;
  }

 private:
  template <class Table>
  static constexpr bool has_context = version_of<Table> >= first_with_context;
  // Connections and groups of receives of one call: more than NCCL has.
  static constexpr int most_receives = 64;

  // Where From has no contexts, To's are the configuration that version 10 wants in connect().
  static inline const From* from = nullptr;
  static inline std::atomic<int> initialized = 0;

  static Result init(Logger logger) { return from->init(logger); }
  static Result init(Logger logger, Profiler profiler) {
    if constexpr (requires { from->init(logger, profiler); }) {
      return from->init(logger, profiler);
    } else {
      return from->init(logger);
    }
  }
  static Result init(void** ctx, std::uint64_t commId, void* config, Logger logger, Profiler profiler) {
    if constexpr (has_context<From>) {
      return from->init(ctx, commId, config, logger, profiler);
    } else {
      *ctx = nullptr;
      // Such plugins know one call for all communicators.
      if (initialized == 0) {
        if (const Result result = init(logger, profiler); result != Result::success) return result;
      }
      ++initialized;
      const auto* const given = static_cast<const NetCommConfig*>(config);
      *ctx = std::make_unique<NetCommConfig>(given != nullptr ? *given : NetCommConfig{undefined}).release();
      return Result::success;
    }
  }
  static Result finalize(void* ctx) {
    if constexpr (has_context<From>) {
      return from->finalize(ctx);
    } else {
      delete static_cast<NetCommConfig*>(ctx);
      --initialized;
      return Result::success;
    }
  }

  template <class Properties>
  static Result properties_as(int dev, Properties* props) {
    typename PropertiesOf<decltype(From::getProperties)>::Type own{};
    const Result result = from->getProperties(dev, &own);
    if (result == Result::success) *props = converted<Properties>(own, dev);
    return result;
  }
  static Result properties(int dev, typename PropertiesOf<decltype(To::getProperties)>::Type* props) {
    return properties_as(dev, props);
  }
  static Result newest_properties(int dev, NetPropertiesV12* props) { return properties_as(dev, props); }

  // NETSUM_MODE=force refuses every network.
  template <class Call>
  static Result unless_refused(const char* name, const Call& call) {
    const Result result = guarded(name, [] { check_sockets(); });
    return result == Result::success ? call() : result;
  }

  static Result listen(int dev, void* handle, void** comm) {
    return unless_refused("listen", [&] { return from->listen(dev, handle, comm); });
  }
  static Result listen(void* ctx, int dev, void* handle, void** comm) {
    if constexpr (has_context<From>) {
      return unless_refused("listen", [&] { return from->listen(ctx, dev, handle, comm); });
    } else {
      return listen(dev, handle, comm);
    }
  }

  static Result connect(int dev, void* handle, void** comm, void** offload) {
    return unless_refused("connect", [&] { return from->connect(dev, handle, comm, offload); });
  }
  // Version 10's configuration, or a context, which is one or the plugin's own.
  static Result connect(int dev, void* config, void* handle, void** comm, void** offload) {
    if constexpr (version_of<From> == 10) {
      return unless_refused("connect", [&] { return from->connect(dev, config, handle, comm, offload); });
    } else {
      return connect(dev, handle, comm, offload);
    }
  }
  static Result connect(void* ctx, int dev, void* handle, void** comm, void** offload) {
    if constexpr (has_context<From>) {
      return unless_refused("connect", [&] { return from->connect(ctx, dev, handle, comm, offload); });
    } else {
      return connect(dev, ctx, handle, comm, offload);
    }
  }
  static Result accept(void* listener, void** comm, void** offload) {
    return unless_refused("accept", [&] { return from->accept(listener, comm, offload); });
  }

  static Result check_length(const char* call, std::size_t bytes) {
    return guarded(call, [&] {
      if (bytes <= most_bytes_of_a_message) return;
      throw Error(ErrorCode::bad_argument, std::to_string(bytes) +
                                               " bytes: the other plugin's interface, version 8, takes " +
                                               std::to_string(most_bytes_of_a_message));
    });
  }

  static Result isend(void* comm, void* data, int bytes, int tag, void* mhandle, void** request) {
    return unless_refused("isend", [&] { return from->isend(comm, data, bytes, tag, mhandle, request); });
  }
  static Result isend(void* comm, void* data, std::size_t bytes, int tag, void* mhandle, void** request) {
    if constexpr (version_of<From> == 8) {
      if (const Result result = check_length("isend", bytes); result != Result::success) return result;
      return isend(comm, data, static_cast<int>(bytes), tag, mhandle, request);
    } else {
      return unless_refused("isend", [&] { return from->isend(comm, data, bytes, tag, mhandle, request); });
    }
  }
  static Result isend(void* comm, void* data, std::size_t bytes, int tag, void* mhandle, void* phandle, void** request) {
    if constexpr (version_of<From> < 10) {
      return isend(comm, data, bytes, tag, mhandle, request);
    } else {
      return unless_refused("isend", [&] { return from->isend(comm, data, bytes, tag, mhandle, phandle, request); });
    }
  }

  static Result irecv(void* comm, int n, void** data, int* sizes, int* tags, void** mhandles, void** request) {
    return unless_refused("irecv", [&] { return from->irecv(comm, n, data, sizes, tags, mhandles, request); });
  }
  static Result irecv(void* comm, int n, void** data, std::size_t* sizes, int* tags, void** mhandles, void** request) {
    if constexpr (version_of<From> == 8) {
      *request = nullptr;  // a value here asks for something that version 8 does not know
      std::array<int, most_receives> lengths{};
      if (n < 0 || n > most_receives) return Result::invalid_argument;
      for (int i = 0; i < n; ++i) {
        if (const Result result = check_length("irecv", sizes[i]); result != Result::success) return result;
        lengths[static_cast<std::size_t>(i)] = static_cast<int>(sizes[i]);
      }
      return irecv(comm, n, data, lengths.data(), tags, mhandles, request);
    } else {
      return unless_refused("irecv", [&] { return from->irecv(comm, n, data, sizes, tags, mhandles, request); });
    }
  }
  static Result irecv(void* comm, int n, void** data, std::size_t* sizes, int* tags, void** mhandles, void** phandles,
                      void** request) {
    if constexpr (version_of<From> < 10) {
      return irecv(comm, n, data, sizes, tags, mhandles, request);
    } else {
      return unless_refused("irecv", [&] { return from->irecv(comm, n, data, sizes, tags, mhandles, phandles, request); });
    }
  }

  static Result make_virtual_device(int* dev, NetVDeviceProps<4>* props) { return from->makeVDevice(dev, props); }
  static Result make_virtual_device(int* dev, NetVDeviceProps<8>* props) {
    if constexpr (version_of<From> == 12) {
      return from->makeVDevice(dev, props);
    } else {
      NetVDeviceProps<4> fewer{props->ndevs, {}};
      if (props->ndevs < 0 || props->ndevs > static_cast<int>(fewer.devs.size())) return Result::invalid_argument;
      std::copy_n(props->devs.begin(), props->ndevs, fewer.devs.begin());
      return from->makeVDevice(dev, &fewer);
    }
  }
};

// Fills `to` by the plugin's table of the same version, or the newest of the older ones. Returns what To's init() has to
// call. Throws Error: bad_argument.
template <class To, class From, class... Older>
decltype(To::init) forward(To& to, const ExternalNet& net) {
  if constexpr (version_of<From> <= version_of<To>) {
    if (const void* const table = net.table(version_of<From>)) {
      log_line(LogLevel::info, "netsum: messages go through " + net.file() + " (" + static_cast<const From*>(table)->name +
                                   "), version " + std::to_string(version_of<From>) + " of NCCL's network interface");
      return Forwarded<To, From>::fill(to, table);
    }
  }
  if constexpr (sizeof...(Older) > 0) {
    return forward<To, Older...>(to, net);
  } else {
    const std::string versions = net.versions(), wanted = std::to_string(version_of<To>);
    if (versions.empty()) {
      throw Error(ErrorCode::bad_argument, net.file() + " has no ncclNetPlugin_vN: is it a network plugin for NCCL?");
    }
    throw Error(ErrorCode::bad_argument, net.file() + " has version " + versions +
                                             " of NCCL's network interface, and this NCCL asks for " + wanted +
                                             (wanted == "8" ? "" : ", for which 8 to " + wanted + " would do"));
  }
}

}  // namespace netsum::nccl
