// The words of the public API: element types, reduction operations, views of a caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <string>
#include <type_traits>
#if __has_include(<stdfloat>)
#include <stdfloat>
#endif

namespace netsum {

// Element type of a tensor, in native byte order. A boolean is a byte, 0 or 1.
enum class DType : std::uint8_t { float32, int32, float16, bfloat16, float64, int64, int16, int8, uint8, boolean };

inline constexpr DType dtypes[] = {DType::float32, DType::int32, DType::float16, DType::bfloat16, DType::float64,
                                   DType::int64,   DType::int16, DType::int8,    DType::uint8,    DType::boolean};

// How a reduction combines the ranks' values. docs/numerics.md gives bounds, and docs/collectives.md which protocol has
// what. sum: integers wrap modulo 2^width. avg: the sum divided by the world size; integers round toward zero. min, max: NaN
// if any rank has NaN; -0 is less than +0. product: floats are multiplied in rank order; integers wrap. bit_and, bit_or,
// bit_xor: integers and booleans. Booleans: sum and max are bit_or, product and min are bit_and; they have no avg.
enum class ReduceOp : std::uint8_t { sum, avg, min, max, product, bit_and, bit_or, bit_xor };
inline constexpr ReduceOp reduce_ops[] = {ReduceOp::sum,     ReduceOp::avg,     ReduceOp::min,    ReduceOp::max,
                                          ReduceOp::product, ReduceOp::bit_and, ReduceOp::bit_or, ReduceOp::bit_xor};

// The format of an all-reduce's floats on the wire (SwitchML). native: the tensor's own width. A 16-bit format halves the
// bytes of float32 tensors and rounds each of their values; float32 costs 16-bit tensors twice the bytes and rounds their
// sums once more. int8 and int4: float32 and bfloat16 in blocks of 64 values of 8 and of 4 bits, rounded up or down by
// chance, and the sum once more, to 8 bits (docs/numerics.md, "8 bits"). Tensors that a format does not apply to (int32;
// 16-bit tensors of the other 16-bit format) travel natively.
enum class WireFormat : std::uint8_t { native, float32, float16, bfloat16, int8, int4 };
inline constexpr WireFormat wire_formats[] = {WireFormat::native,   WireFormat::float32, WireFormat::float16,
                                              WireFormat::bfloat16, WireFormat::int8,    WireFormat::int4};
[[nodiscard]] constexpr bool rounds_blocks(WireFormat wire) {
  return wire == WireFormat::int8 || wire == WireFormat::int4;
}

// What protects packets between hosts. none: checksums, which find accidents alone. tag: only a holder of the key can make
// or change a packet, but all can read it. encrypt: nobody else can read its values either.
enum class PacketSecurity : std::uint8_t { none, tag, encrypt };

// How long a rank, or a rank's aggregator, may be silent before it counts as dead, unless its connection says so earlier:
// longer than a debugger's stop, a move between hosts or a busy machine keep a process that lives from being heard.
inline constexpr std::uint32_t default_heartbeat_timeout_ms = 15'000;
inline constexpr std::uint32_t default_survivor_timeout_ms = 800;
// An aggregator's slots of 256 elements: 256 ranks of NetReduce fit, with windows of two packets. Memory has a limit of its
// own.
inline constexpr std::uint32_t default_slots = 32768;

// How packets pass between a process and the network. sockets: through the kernel. xdp: past it, by AF_XDP, as far as they
// go over IPv4 by an Ethernet interface (docs/data-planes.md); its program and its queues are this process's alone. dpdk:
// by ports that DPDK has taken from the kernel, where this process is a host of its own.
enum class DataPath : std::uint8_t { sockets, xdp, dpdk };

// Of DataPath::dpdk. A process has its ports once, until it ends.
struct DpdkOptions {
  std::string args{};     // of DPDK's EAL, separated by spaces: "-a 0000:03:00.0"
  std::string address{};  // its own at all ports, and the network's length: "10.0.0.1/24"; with a gateway: ",10.0.0.254"
};

// The element type that a C++ type is; none: it is no element. Half types without a C++ type (float16 and bfloat16, before
// C++23's stdfloat) are named: TensorView{bits.data(), bits.size(), DType::bfloat16}.
template <class T>
[[nodiscard]] constexpr std::optional<DType> dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::float32;
  if constexpr (std::is_same_v<T, double>) return DType::float64;
  if constexpr (std::is_same_v<T, bool>) return DType::boolean;
  if constexpr (std::is_same_v<T, std::uint8_t> || std::is_same_v<T, std::byte>) return DType::uint8;
  if constexpr (std::is_same_v<T, std::int8_t>) return DType::int8;
  if constexpr (std::is_same_v<T, std::int16_t>) return DType::int16;
  if constexpr (std::is_same_v<T, std::int32_t>) return DType::int32;
  if constexpr (std::is_same_v<T, std::int64_t> || std::is_same_v<T, long long>) return DType::int64;
#ifdef __STDCPP_FLOAT16_T__
  if constexpr (std::is_same_v<T, std::float16_t>) return DType::float16;
#endif
#ifdef __STDCPP_BFLOAT16_T__
  if constexpr (std::is_same_v<T, std::bfloat16_t>) return DType::bfloat16;
#endif
  return std::nullopt;
}

template <class T>
concept Element = dtype_of<std::remove_const_t<T>>()
.has_value();
// A vector, array or span of elements that outlives the expression it is in.
template <class R>
concept ElementRange = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> && std::ranges::borrowed_range<R> &&
    Element<std::remove_reference_t<std::ranges::range_reference_t<R>>>;
template <class R>
concept WritableElementRange =
    ElementRange<R> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>;

// `elements` elements of `dtype` at `data`, contiguous, lent to netsum until the operation ends. `data` may be unaligned
// only to less than its element; it may be null if `elements` is 0.
struct TensorView {
  void* data = nullptr;
  std::size_t elements = 0;
  DType dtype = DType::uint8;

  constexpr TensorView() = default;
  constexpr TensorView(void* d, std::size_t n, DType type) : data(d), elements(n), dtype(type) {}
  template <Element T>
  requires(!std::is_const_v<T>) constexpr TensorView(T* d, std::size_t n) : TensorView(d, n, *dtype_of<T>()) {}
  template <WritableElementRange R>
  constexpr TensorView(R&& range) : TensorView(std::ranges::data(range), std::ranges::size(range)) {}
};

// The same, only read. Until the operation ends nobody may write to it either.
struct ConstTensorView {
  const void* data = nullptr;
  std::size_t elements = 0;
  DType dtype = DType::uint8;

  constexpr ConstTensorView() = default;
  constexpr ConstTensorView(const void* d, std::size_t n, DType type) : data(d), elements(n), dtype(type) {}
  constexpr ConstTensorView(const TensorView& view) : ConstTensorView(view.data, view.elements, view.dtype) {}
  template <Element T>
  constexpr ConstTensorView(const T* d, std::size_t n) : ConstTensorView(d, n, *dtype_of<T>()) {}
  template <ElementRange R>
  constexpr ConstTensorView(R&& range) : ConstTensorView(std::ranges::data(range), std::ranges::size(range)) {}
};

// How a rank uses its RDMA device (NetReduce).
struct VerbsSettings {
  std::uint8_t port = 1;
  // Of the port's addresses. Empty: its first IPv4 address of RoCEv2, else its first such IPv6 address that is not
  // link-local.
  std::optional<std::uint8_t> gid_index{};
  // An acknowledgement is waited for 4.096 us * 2^ack_timeout, and up to four times as long (1 ... 31). Then the device
  // retransmits, `retries` times in a row (0 ... 7; soft-RoCE takes 7 as for ever, which hides a dead accelerator).
  std::uint8_t ack_timeout = 20, retries = 6;
  std::uint8_t traffic_class = 2;  // DSCP and ECN bits of the packets' IP headers; 2: ECT(0), so that long queues mark them
  std::uint8_t service_level = 0;  // 0 ... 7: the priority that the device sends with (PFC)
};

[[nodiscard]] constexpr std::size_t bytes_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
    case DType::int64:
      return 8;
    case DType::float32:
    case DType::int32:
      return 4;
    case DType::float16:
    case DType::bfloat16:
    case DType::int16:
      return 2;
    case DType::int8:
    case DType::uint8:
    case DType::boolean:
      return 1;
  }
  return 1;
}

[[nodiscard]] constexpr bool is_float(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float64;
}

[[nodiscard]] constexpr const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::int32:
      return "int32";
    case DType::float16:
      return "float16";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float64:
      return "float64";
    case DType::int64:
      return "int64";
    case DType::int16:
      return "int16";
    case DType::int8:
      return "int8";
    case DType::uint8:
      return "uint8";
    case DType::boolean:
      return "bool";
  }
  return "?";
}

[[nodiscard]] constexpr const char* to_string(WireFormat format) {
  switch (format) {
    case WireFormat::native:
      return "native";
    case WireFormat::float32:
      return "float32";
    case WireFormat::float16:
      return "float16";
    case WireFormat::bfloat16:
      return "bfloat16";
    case WireFormat::int8:
      return "int8";
    case WireFormat::int4:
      return "int4";
  }
  return "?";
}

[[nodiscard]] constexpr const char* to_string(PacketSecurity security) {
  switch (security) {
    case PacketSecurity::none:
      return "none";
    case PacketSecurity::tag:
      return "tag";
    case PacketSecurity::encrypt:
      return "encrypt";
  }
  return "?";
}

[[nodiscard]] constexpr const char* to_string(DataPath path) {
  switch (path) {
    case DataPath::sockets:
      return "sockets";
    case DataPath::xdp:
      return "xdp";
    case DataPath::dpdk:
      return "dpdk";
  }
  return "?";
}

[[nodiscard]] constexpr const char* to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::avg:
      return "avg";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::product:
      return "prod";
    case ReduceOp::bit_and:
      return "band";
    case ReduceOp::bit_or:
      return "bor";
    case ReduceOp::bit_xor:
      return "bxor";
  }
  return "?";
}

// Whether the operation is defined on the type.
[[nodiscard]] constexpr bool applies_to(ReduceOp op, DType dtype) {
  switch (op) {
    case ReduceOp::avg:
      return dtype != DType::boolean;
    case ReduceOp::bit_and:
    case ReduceOp::bit_or:
    case ReduceOp::bit_xor:
      return !is_float(dtype);
    default:
      return true;
  }
}

}  // namespace netsum
