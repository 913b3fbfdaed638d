// NCCL's interface to network plugins, versions 8 (NCCL 2.20) to 12 (NCCL 2.30), with names of our own: NCCL installs no
// header for it. What NCCL looks up is a table for each version, ncclNetPlugin_vN and ncclCollNetPlugin_vN (plugin.cc). The
// order and the types of members are NCCL's; tests/e2e/nccl_plugin.py declares them again.
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

inline constexpr std::size_t handle_bytes = 128;  // of what listen() gives to other ranks
inline constexpr std::size_t most_requests = 32;  // of one connection or group
inline constexpr int host_memory = 1;             // of ptrSupport, and the type of memory that regMr() is given
inline constexpr int undefined = -1;

// makeVDevice(), which merges network devices, is null: netsum has no virtual devices.
template <int most>
struct VirtualDevice {
  int devices;
  std::array<int, most> device;
};

struct PropertiesV8 {
  const char* name;
  const char* pci_path;
  std::uint64_t guid;
  int memory;  // the kinds of memory
  int registration_is_global;
  int mbit_per_second;
  int port;
  float latency;
  int most_connections;
  int most_receives;  // in one irecv()
  int offload_type;
  int offload_version;
};

struct PropertiesV9 {
  const char* name;
  const char* pci_path;
  std::uint64_t guid;
  int memory;
  int registration_is_global;
  int force_flush;
  int mbit_per_second;
  int port;
  float latency;
  int most_connections;
  int most_receives;
  int offload_type;
  int offload_version;
  VirtualDevice<4> parts;
  std::size_t most_bytes;             // of a message
  std::size_t most_collective_bytes;  // of one collective call
};
using PropertiesV10 = PropertiesV9;

struct PropertiesV11 {
  const char* name;
  const char* pci_path;
  std::uint64_t guid;
  int memory;
  int registration_is_global;
  int force_flush;
  int mbit_per_second;
  int port;
  float latency;
  int most_connections;
  int most_receives;
  int offload_type;
  int offload_version;
  VirtualDevice<4> parts;
  std::size_t most_bytes;
  std::size_t most_collective_bytes;
  int most_merged_requests;
};

struct PropertiesV12 {
  const char* name;
  const char* pci_path;
  std::uint64_t guid;
  int memory;
  int registration_is_global;
  int force_flush;
  int mbit_per_second;
  int port;
  float latency;
  int most_connections;
  int most_receives;
  int offload_type;
  int offload_version;
  VirtualDevice<8> parts;
  std::size_t most_bytes;
  std::size_t most_collective_bytes;
  int most_merged_requests;
  std::int16_t rail;
  std::int16_t plane;
};

struct NetV8 {
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV8*);
  Result (*listen)(int device, void* handle, void** listener);
  Result (*connect)(int device, void* handle, void** sender, void** offload);
  Result (*accept)(void* listener, void** receiver, void** offload);
  Result (*register_memory)(void* connection, void* data, std::size_t bytes, int memory, void** registration);
  Result (*register_dma_buf)(void* connection, void* data, std::size_t bytes, int memory, std::uint64_t offset, int file,
                             void** registration);
  Result (*deregister_memory)(void* connection, void* registration);
  Result (*isend)(void* sender, void* data, int bytes, int tag, void* registration, void** request);
  Result (*irecv)(void* receiver, int count, void** data, int* bytes, int* tags, void** registrations, void** request);
  Result (*iflush)(void* receiver, int count, void** data, int* bytes, void** registrations, void** request);
  Result (*test)(void* request, int* done, int* bytes);
  Result (*close_send)(void* sender);
  Result (*close_receive)(void* receiver);
  Result (*close_listen)(void* listener);
  Result (*device_registration)(void* connection, void* registration, void** of_device);
  Result (*irecv_consumed)(void* receiver, int count, void* request);
};

struct NetV9 {
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV9*);
  Result (*listen)(int device, void* handle, void** listener);
  Result (*connect)(int device, void* handle, void** sender, void** offload);
  Result (*accept)(void* listener, void** receiver, void** offload);
  Result (*register_memory)(void* connection, void* data, std::size_t bytes, int memory, void** registration);
  Result (*register_dma_buf)(void* connection, void* data, std::size_t bytes, int memory, std::uint64_t offset, int file,
                             void** registration);
  Result (*deregister_memory)(void* connection, void* registration);
  Result (*isend)(void* sender, void* data, std::size_t bytes, int tag, void* registration, void** request);
  Result (*irecv)(void* receiver, int count, void** data, std::size_t* bytes, int* tags, void** registrations,
                  void** request);
  Result (*iflush)(void* receiver, int count, void** data, int* bytes, void** registrations, void** request);
  Result (*test)(void* request, int* done, int* bytes);
  Result (*close_send)(void* sender);
  Result (*close_receive)(void* receiver);
  Result (*close_listen)(void* listener);
  Result (*device_registration)(void* connection, void* registration, void** of_device);
  Result (*irecv_consumed)(void* receiver, int count, void* request);
  Result (*make_virtual_device)(int* device, VirtualDevice<4>* parts);
};

struct NetV10 {
  const char* name;
  Result (*init)(Logger, Profiler);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV10*);
  Result (*listen)(int device, void* handle, void** listener);
  Result (*connect)(int device, void* config, void* handle, void** sender, void** offload);
  Result (*accept)(void* listener, void** receiver, void** offload);
  Result (*register_memory)(void* connection, void* data, std::size_t bytes, int memory, void** registration);
  Result (*register_dma_buf)(void* connection, void* data, std::size_t bytes, int memory, std::uint64_t offset, int file,
                             void** registration);
  Result (*deregister_memory)(void* connection, void* registration);
  Result (*isend)(void* sender, void* data, std::size_t bytes, int tag, void* registration, void* event, void** request);
  Result (*irecv)(void* receiver, int count, void** data, std::size_t* bytes, int* tags, void** registrations, void** events,
                  void** request);
  Result (*iflush)(void* receiver, int count, void** data, int* bytes, void** registrations, void** request);
  Result (*test)(void* request, int* done, int* bytes);
  Result (*close_send)(void* sender);
  Result (*close_receive)(void* receiver);
  Result (*close_listen)(void* listener);
  Result (*device_registration)(void* connection, void* registration, void** of_device);
  Result (*irecv_consumed)(void* receiver, int count, void* request);
  Result (*make_virtual_device)(int* device, VirtualDevice<4>* parts);
};

// Since version 11 init() is called for each of NCCL's communicators, and makes a context for it.
template <class Properties, class Parts>
struct NetWithContext {
  const char* name;
  Result (*init)(void** context, std::uint64_t communicator, void* config, Logger, Profiler);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, Properties*);
  Result (*listen)(void* context, int device, void* handle, void** listener);
  Result (*connect)(void* context, int device, void* handle, void** sender, void** offload);
  Result (*accept)(void* listener, void** receiver, void** offload);
  Result (*register_memory)(void* connection, void* data, std::size_t bytes, int memory, void** registration);
  Result (*register_dma_buf)(void* connection, void* data, std::size_t bytes, int memory, std::uint64_t offset, int file,
                             void** registration);
  Result (*deregister_memory)(void* connection, void* registration);
  Result (*isend)(void* sender, void* data, std::size_t bytes, int tag, void* registration, void* event, void** request);
  Result (*irecv)(void* receiver, int count, void** data, std::size_t* bytes, int* tags, void** registrations, void** events,
                  void** request);
  Result (*iflush)(void* receiver, int count, void** data, int* bytes, void** registrations, void** request);
  Result (*test)(void* request, int* done, int* bytes);
  Result (*close_send)(void* sender);
  Result (*close_receive)(void* receiver);
  Result (*close_listen)(void* listener);
  Result (*device_registration)(void* connection, void* registration, void** of_device);
  Result (*irecv_consumed)(void* receiver, int count, void* request);
  Result (*make_virtual_device)(int* device, Parts* parts);
  Result (*finalize)(void* context);
  Result (*set_attributes)(void* context, void* attributes);
};
using NetV11 = NetWithContext<PropertiesV11, VirtualDevice<4>>;
using NetV12 = NetWithContext<PropertiesV12, VirtualDevice<8>>;

// A piece of a rank's memory, of all-gather's result or reduce-scatter's argument.
template <class Size>
struct Part {
  void* registration;
  void* address;
  Size bytes;
};
using PartV8 = Part<std::uint32_t>;
using PartV9 = Part<std::size_t>;  // and later

// All-gather and reduce-scatter carry a window of the ranks' blocks, one after the other: `window_bytes` bytes from
// `window_offset` on, of ranks * `bytes_per_rank`.
struct CollNetV8 {
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV8*);
  Result (*listen)(int device, void* handle, void** listener);
  Result (*connect)(void** handles, int ranks, int rank, void* listener, void** group);
  Result (*reduce_support)(DataType, RedOp, int* supported);
  Result (*register_memory)(void* group, void* data, std::size_t bytes, int memory, void** registration);
  Result (*register_dma_buf)(void* group, void* data, std::size_t bytes, int memory, std::uint64_t offset, int file,
                             void** registration);
  Result (*deregister_memory)(void* group, void* registration);
  Result (*iallreduce)(void* group, void* in, void* out, int elements, DataType, RedOp, void* in_registration,
                       void* out_registration, void** request);
  Result (*iallgather)(void* group, void* in, int out_parts, PartV8* out, std::size_t bytes_per_rank,
                       std::size_t window_offset, std::size_t window_bytes, void* in_registration, void** request);
  Result (*ireducescatter)(void* group, int in_parts, PartV8* in, void* out, std::size_t bytes_per_rank,
                           std::size_t window_offset, std::size_t window_bytes, DataType, RedOp, void* out_registration,
                           void** request);
  Result (*iflush)(void* group, void* data, int bytes, void* registration, void** request);
  Result (*test)(void* request, int* done, int* bytes);
  Result (*close_group)(void* group);
  Result (*close_listen)(void* listener);
};

struct CollNetV9 {
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV9*);
  Result (*listen)(int device, void* handle, void** listener);
  Result (*connect)(void** handles, int ranks, int rank, void* listener, void** group);
  Result (*reduce_support)(DataType, RedOp, int* supported);
  Result (*register_memory)(void* group, void* data, std::size_t bytes, int memory, void** registration);
  Result (*register_dma_buf)(void* group, void* data, std::size_t bytes, int memory, std::uint64_t offset, int file,
                             void** registration);
  Result (*deregister_memory)(void* group, void* registration);
  Result (*iallreduce)(void* group, void* in, void* out, std::size_t elements, DataType, RedOp, void* in_registration,
                       void* out_registration, void** request);
  Result (*iallgather)(void* group, void* in, int out_parts, PartV9* out, std::size_t bytes_per_rank,
                       std::size_t window_offset, std::size_t window_bytes, void* in_registration, void** request);
  Result (*ireducescatter)(void* group, int in_parts, PartV9* in, void* out, std::size_t bytes_per_rank,
                           std::size_t window_offset, std::size_t window_bytes, DataType, RedOp, void* out_registration,
                           void** request);
  Result (*iflush)(void* group, void* data, int bytes, void* registration, void** request);
  Result (*test)(void* request, int* done, int* bytes);
  Result (*close_group)(void* group);
  Result (*close_listen)(void* listener);
  Result (*make_virtual_device)(int* device, VirtualDevice<4>* parts);
};
using CollNetV10 = CollNetV9;

template <class Properties, class Parts>
struct CollNetWithContext {
  const char* name;
  Result (*init)(void** context, std::uint64_t communicator, Logger);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, Properties*);
  Result (*listen)(void* context, int device, void* handle, void** listener);
  Result (*connect)(void** handles, int ranks, int rank, void* listener, void** group);
  Result (*reduce_support)(DataType, RedOp, int* supported);
  Result (*register_memory)(void* group, void* data, std::size_t bytes, int memory, void** registration);
  Result (*register_dma_buf)(void* group, void* data, std::size_t bytes, int memory, std::uint64_t offset, int file,
                             void** registration);
  Result (*deregister_memory)(void* group, void* registration);
  Result (*iallreduce)(void* group, void* in, void* out, std::size_t elements, DataType, RedOp, void* in_registration,
                       void* out_registration, void** request);
  Result (*iallgather)(void* group, void* in, int out_parts, PartV9* out, std::size_t bytes_per_rank,
                       std::size_t window_offset, std::size_t window_bytes, void* in_registration, void** request);
  Result (*ireducescatter)(void* group, int in_parts, PartV9* in, void* out, std::size_t bytes_per_rank,
                           std::size_t window_offset, std::size_t window_bytes, DataType, RedOp, void* out_registration,
                           void** request);
  Result (*iflush)(void* group, void* data, int bytes, void* registration, void** request);
  Result (*test)(void* request, int* done, int* bytes);
  Result (*close_group)(void* group);
  Result (*close_listen)(void* listener);
  Result (*make_virtual_device)(int* device, Parts* parts);
  Result (*finalize)(void* context);
};
using CollNetV11 = CollNetWithContext<PropertiesV11, VirtualDevice<4>>;
using CollNetV12 = CollNetWithContext<PropertiesV12, VirtualDevice<8>>;

}  // namespace netsum::nccl
