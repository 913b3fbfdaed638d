// NCCL's interface to network plugins, versions 8 (NCCL 2.20) to 12 (NCCL 2.30), which NCCL installs no header for. Members
// and arguments have the names of NCCL's own net_v8.h to net_v12.h, with which this file can be compared; NetPropertiesV8 is
// ncclNetProperties_v8_t there. What NCCL looks up is a table for each version, ncclNetPlugin_vN and ncclCollNetPlugin_vN
// (plugin.cc). tests/e2e/nccl_plugin.py declares all of it again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace netsum::nccl {

enum class Result : int {
  success = 0,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
};

enum class DataType : int { int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16 };
enum class RedOp : int { sum, product, max, min, avg };

enum class LogLevel : int { warn = 2, info = 3 };
inline constexpr unsigned long log_of_init_and_net = 1 | 16;  // which of NCCL_DEBUG_SUBSYS show a line
using Logger = void (*)(LogLevel level, unsigned long subsystems, const char* place, int line, const char* format, ...);
using Profiler = Result (*)(void** event, int type, void* parent, std::int64_t plugin, void* more);

inline constexpr std::size_t handle_bytes = 128;  // NCCL_NET_HANDLE_MAXSIZE: what listen() gives to other ranks
inline constexpr std::size_t most_requests = 32;  // NCCL_NET_MAX_REQUESTS: of one connection or group
inline constexpr int host_memory = 1;             // NCCL_PTR_HOST
inline constexpr int undefined = -1;              // NCCL_NET_ID_UNDEF, NCCL_NET_TRAFFIC_CLASS_UNDEF

// makeVDevice(), which merges network devices, is null: netsum has no virtual devices.
template <int most>
struct NetVDeviceProps {
  int ndevs;
  std::array<int, most> devs;
};

// Of one of NCCL's communicators: connect()'s in version 10, and init()'s later.
struct NetCommConfig {
  int trafficClass;
};

struct NetPropertiesV8 {
  const char* name;
  const char* pciPath;
  std::uint64_t guid;
  int ptrSupport;  // the kinds of memory
  int regIsGlobal;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;  // in one irecv()
  int netDeviceType;
  int netDeviceVersion;
};

struct NetPropertiesV9 {
  const char* name;
  const char* pciPath;
  std::uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
  NetVDeviceProps<4> vProps;
  std::size_t maxP2pBytes;   // of a message
  std::size_t maxCollBytes;  // of one collective call
};
using NetPropertiesV10 = NetPropertiesV9;

struct NetPropertiesV11 {
  const char* name;
  const char* pciPath;
  std::uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
  NetVDeviceProps<4> vProps;
  std::size_t maxP2pBytes;
  std::size_t maxCollBytes;
  int maxMultiRequestSize;
};

struct NetPropertiesV12 {
  const char* name;
  const char* pciPath;
  std::uint64_t guid;
  int ptrSupport;
  int regIsGlobal;
  int forceFlush;
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
  int netDeviceType;
  int netDeviceVersion;
  NetVDeviceProps<8> vProps;
  std::size_t maxP2pBytes;
  std::size_t maxCollBytes;
  int maxMultiRequestSize;
  std::int16_t railId;
  std::int16_t planeId;
};

struct NetV8 {
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* ndev);
  Result (*getProperties)(int dev, NetPropertiesV8* props);
  Result (*listen)(int dev, void* handle, void** listenComm);
  Result (*connect)(int dev, void* handle, void** sendComm, void** sendDevComm);
  Result (*accept)(void* listenComm, void** recvComm, void** recvDevComm);
  Result (*regMr)(void* comm, void* data, std::size_t size, int type, void** mhandle);
  Result (*regMrDmaBuf)(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int fd, void** mhandle);
  Result (*deregMr)(void* comm, void* mhandle);
  Result (*isend)(void* sendComm, void* data, int size, int tag, void* mhandle, void** request);
  Result (*irecv)(void* recvComm, int n, void** data, int* sizes, int* tags, void** mhandles, void** request);
  Result (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*closeSend)(void* sendComm);
  Result (*closeRecv)(void* recvComm);
  Result (*closeListen)(void* listenComm);
  Result (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
  Result (*irecvConsumed)(void* recvComm, int n, void* request);
};

struct NetV9 {
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* ndev);
  Result (*getProperties)(int dev, NetPropertiesV9* props);
  Result (*listen)(int dev, void* handle, void** listenComm);
  Result (*connect)(int dev, void* handle, void** sendComm, void** sendDevComm);
  Result (*accept)(void* listenComm, void** recvComm, void** recvDevComm);
  Result (*regMr)(void* comm, void* data, std::size_t size, int type, void** mhandle);
  Result (*regMrDmaBuf)(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int fd, void** mhandle);
  Result (*deregMr)(void* comm, void* mhandle);
  Result (*isend)(void* sendComm, void* data, std::size_t size, int tag, void* mhandle, void** request);
  Result (*irecv)(void* recvComm, int n, void** data, std::size_t* sizes, int* tags, void** mhandles, void** request);
  Result (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*closeSend)(void* sendComm);
  Result (*closeRecv)(void* recvComm);
  Result (*closeListen)(void* listenComm);
  Result (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
  Result (*irecvConsumed)(void* recvComm, int n, void* request);
  Result (*makeVDevice)(int* d, NetVDeviceProps<4>* props);
};

struct NetV10 {
  const char* name;
  Result (*init)(Logger, Profiler);
  Result (*devices)(int* ndev);
  Result (*getProperties)(int dev, NetPropertiesV10* props);
  Result (*listen)(int dev, void* handle, void** listenComm);
  Result (*connect)(int dev, void* config, void* handle, void** sendComm, void** sendDevComm);
  Result (*accept)(void* listenComm, void** recvComm, void** recvDevComm);
  Result (*regMr)(void* comm, void* data, std::size_t size, int type, void** mhandle);
  Result (*regMrDmaBuf)(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int fd, void** mhandle);
  Result (*deregMr)(void* comm, void* mhandle);
  Result (*isend)(void* sendComm, void* data, std::size_t size, int tag, void* mhandle, void* phandle, void** request);
  Result (*irecv)(void* recvComm, int n, void** data, std::size_t* sizes, int* tags, void** mhandles, void** phandles,
                  void** request);
  Result (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*closeSend)(void* sendComm);
  Result (*closeRecv)(void* recvComm);
  Result (*closeListen)(void* listenComm);
  Result (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
  Result (*irecvConsumed)(void* recvComm, int n, void* request);
  Result (*makeVDevice)(int* d, NetVDeviceProps<4>* props);
};

// Since version 11 init() is called for each of NCCL's communicators, and makes a context for it.
template <class Properties, class Parts>
struct NetWithContext {
  const char* name;
  Result (*init)(void** ctx, std::uint64_t commId, void* config, Logger, Profiler);
  Result (*devices)(int* ndev);
  Result (*getProperties)(int dev, Properties* props);
  Result (*listen)(void* ctx, int dev, void* handle, void** listenComm);
  Result (*connect)(void* ctx, int dev, void* handle, void** sendComm, void** sendDevComm);
  Result (*accept)(void* listenComm, void** recvComm, void** recvDevComm);
  Result (*regMr)(void* comm, void* data, std::size_t size, int type, void** mhandle);
  Result (*regMrDmaBuf)(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int fd, void** mhandle);
  Result (*deregMr)(void* comm, void* mhandle);
  Result (*isend)(void* sendComm, void* data, std::size_t size, int tag, void* mhandle, void* phandle, void** request);
  Result (*irecv)(void* recvComm, int n, void** data, std::size_t* sizes, int* tags, void** mhandles, void** phandles,
                  void** request);
  Result (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*closeSend)(void* sendComm);
  Result (*closeRecv)(void* recvComm);
  Result (*closeListen)(void* listenComm);
  Result (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
  Result (*irecvConsumed)(void* recvComm, int n, void* request);
  Result (*makeVDevice)(int* d, Parts* props);
  Result (*finalize)(void* ctx);
  Result (*setNetAttr)(void* ctx, void* netAttr);
};
using NetV11 = NetWithContext<NetPropertiesV11, NetVDeviceProps<4>>;
using NetV12 = NetWithContext<NetPropertiesV12, NetVDeviceProps<8>>;

// A piece of a rank's memory, of all-gather's result or reduce-scatter's argument.
template <class Size>
struct NetSge {
  void* mhandle;
  void* address;
  Size size;
};
using NetSgeV8 = NetSge<std::uint32_t>;
using NetSgeV9 = NetSge<std::size_t>;  // and later

// All-gather and reduce-scatter carry a window of the ranks' blocks, one after the other: windowBytes bytes from
// windowOffset on, of nranks * bytesPerRank.
struct CollNetV8 {
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* ndev);
  Result (*getProperties)(int dev, NetPropertiesV8* props);
  Result (*listen)(int dev, void* handle, void** listenComm);
  Result (*connect)(void** handles, int nranks, int rank, void* listenComm, void** collComm);
  Result (*reduceSupport)(DataType, RedOp, int* supported);
  Result (*regMr)(void* collComm, void* data, std::size_t size, int type, void** mhandle);
  Result (*regMrDmaBuf)(void* collComm, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
                        void** mhandle);
  Result (*deregMr)(void* collComm, void* mhandle);
  Result (*iallreduce)(void* collComm, void* sendData, void* recvData, int count, DataType, RedOp, void* sendMhandle,
                       void* recvMhandle, void** request);
  Result (*iallgather)(void* collComm, void* sendData, int nRecvParts, NetSgeV8* recvParts, std::size_t bytesPerRank,
                       std::size_t windowOffset, std::size_t windowBytes, void* sendMhandle, void** request);
  Result (*ireducescatter)(void* collComm, int nSendParts, NetSgeV8* sendParts, void* recvData, std::size_t bytesPerRank,
                           std::size_t windowOffset, std::size_t windowBytes, DataType, RedOp, void* recvMhandle,
                           void** request);
  Result (*iflush)(void* collComm, void* data, int size, void* mhandle, void** request);
  Result (*test)(void* request, int* done, int* size);
  Result (*closeColl)(void* collComm);
  Result (*closeListen)(void* listenComm);
};

struct CollNetV9 {
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* ndev);
  Result (*getProperties)(int dev, NetPropertiesV9* props);
  Result (*listen)(int dev, void* handle, void** listenComm);
  Result (*connect)(void** handles, int nranks, int rank, void* listenComm, void** collComm);
  Result (*reduceSupport)(DataType, RedOp, int* supported);
  Result (*regMr)(void* collComm, void* data, std::size_t size, int type, void** mhandle);
  Result (*regMrDmaBuf)(void* collComm, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
                        void** mhandle);
  Result (*deregMr)(void* collComm, void* mhandle);
  Result (*iallreduce)(void* collComm, void* sendData, void* recvData, std::size_t count, DataType, RedOp, void* sendMhandle,
                       void* recvMhandle, void** request);
  Result (*iallgather)(void* collComm, void* sendData, int nRecvParts, NetSgeV9* recvParts, std::size_t bytesPerRank,
                       std::size_t windowOffset, std::size_t windowBytes, void* sendMhandle, void** request);
  Result (*ireducescatter)(void* collComm, int nSendParts, NetSgeV9* sendParts, void* recvData, std::size_t bytesPerRank,
                           std::size_t windowOffset, std::size_t windowBytes, DataType, RedOp, void* recvMhandle,
                           void** request);
  Result (*iflush)(void* collComm, void* data, int size, void* mhandle, void** request);
  Result (*test)(void* request, int* done, int* size);
  Result (*closeColl)(void* collComm);
  Result (*closeListen)(void* listenComm);
  Result (*makeVDevice)(int* d, NetVDeviceProps<4>* props);
};
using CollNetV10 = CollNetV9;

template <class Properties, class Parts>
struct CollNetWithContext {
  const char* name;
  Result (*init)(void** ctx, std::uint64_t commId, Logger);
  Result (*devices)(int* ndev);
  Result (*getProperties)(int dev, Properties* props);
  Result (*listen)(void* ctx, int dev, void* handle, void** listenComm);
  Result (*connect)(void** handles, int nranks, int rank, void* listenComm, void** collComm);
  Result (*reduceSupport)(DataType, RedOp, int* supported);
  Result (*regMr)(void* collComm, void* data, std::size_t size, int type, void** mhandle);
  Result (*regMrDmaBuf)(void* collComm, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
                        void** mhandle);
  Result (*deregMr)(void* collComm, void* mhandle);
  Result (*iallreduce)(void* collComm, void* sendData, void* recvData, std::size_t count, DataType, RedOp, void* sendMhandle,
                       void* recvMhandle, void** request);
  Result (*iallgather)(void* collComm, void* sendData, int nRecvParts, NetSgeV9* recvParts, std::size_t bytesPerRank,
                       std::size_t windowOffset, std::size_t windowBytes, void* sendMhandle, void** request);
  Result (*ireducescatter)(void* collComm, int nSendParts, NetSgeV9* sendParts, void* recvData, std::size_t bytesPerRank,
                           std::size_t windowOffset, std::size_t windowBytes, DataType, RedOp, void* recvMhandle,
                           void** request);
  Result (*iflush)(void* collComm, void* data, int size, void* mhandle, void** request);
  Result (*test)(void* request, int* done, int* size);
  Result (*closeColl)(void* collComm);
  Result (*closeListen)(void* listenComm);
  Result (*makeVDevice)(int* d, Parts* props);
  Result (*finalize)(void* ctx);
};
using CollNetV11 = CollNetWithContext<NetPropertiesV11, NetVDeviceProps<4>>;
using CollNetV12 = CollNetWithContext<NetPropertiesV12, NetVDeviceProps<8>>;

}  // namespace netsum::nccl
