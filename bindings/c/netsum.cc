// The C API: each function calls the C++ method of the same name, and turns what is thrown into a status and a text.
#include "netsum/netsum.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <exception>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "bindings/settings/settings.h"
#include "netsum/communicator.h"

struct netsum_options {
  std::map<std::string, std::string> given;
  bool from_environment = false;
  std::function<void(const std::string&)> log;
  std::function<void(const netsum::Error&)> on_failure;
  std::stop_source stop;
};

struct netsum_communicator {
  netsum::Communicator communicator;
};

struct netsum_work {
  netsum::Work work;
};

namespace {

using netsum::CallOptions;
using netsum::ConstTensorView;
using netsum::DType;
using netsum::Error;
using netsum::ErrorCode;
using netsum::ReduceOp;
using netsum::TensorView;

// The enumerators of C have the values of C++; a status is a code + 1.
template <class C, class E>
constexpr bool in_this_order(std::initializer_list<C> numbers, std::span<const E> all, int first) {
  return std::equal(numbers.begin(), numbers.end(), all.begin(), all.end(),
                    [&](C number, E each) { return static_cast<int>(number) == static_cast<int>(each) + first; });
}
static_assert(in_this_order<netsum_dtype, DType>({NETSUM_FLOAT32, NETSUM_INT32, NETSUM_FLOAT16, NETSUM_BFLOAT16,
                                                  NETSUM_FLOAT64, NETSUM_INT64, NETSUM_INT16, NETSUM_INT8, NETSUM_UINT8,
                                                  NETSUM_BOOLEAN},
                                                 netsum::dtypes, 0));
static_assert(in_this_order<netsum_op, ReduceOp>({NETSUM_SUM, NETSUM_AVG, NETSUM_MIN, NETSUM_MAX, NETSUM_PRODUCT,
                                                  NETSUM_BIT_AND, NETSUM_BIT_OR, NETSUM_BIT_XOR},
                                                 netsum::reduce_ops, 0));
static_assert(NETSUM_EXCLUDED == static_cast<int>(ErrorCode::excluded) + 1);

thread_local std::shared_ptr<const Error> last_error;

netsum_status status_of(ErrorCode code) {
  return static_cast<netsum_status>(static_cast<int>(code) + 1);
}

netsum_status failed(const Error& error) {
  try {
    last_error = std::make_shared<const Error>(error);
  } catch (const std::bad_alloc&) {
    last_error.reset();
  }
  return status_of(error.code());
}

template <class Body>
netsum_status attempt(const Body& body) {
  try {
    body();
    return NETSUM_OK;
  } catch (const Error& error) {
    return failed(error);
  } catch (const std::exception& error) {
    return failed(Error(ErrorCode::internal, error.what()));
  }
}

// For functions that return a value: `otherwise` after an error.
template <class T, class Body>
T attempted(T otherwise, const Body& body) {
  static_cast<void>(attempt([&] { otherwise = body(); }));
  return otherwise;
}

// What a pointer refers to.
template <class T>
T& given(T* pointer, const char* name) {
  if (pointer != nullptr) return *pointer;
  throw Error(ErrorCode::bad_argument, std::string(name) + " is a null pointer");
}

// Of an enumerator that may be any number; communicator.cc refuses those that are none.
template <class E>
E cast(int value) {
  return value < 0 || value > UINT8_MAX ? static_cast<E>(UINT8_MAX) : static_cast<E>(value);
}

CallOptions options_of(const netsum_call* call) {
  if (call == nullptr) return {};
  netsum_call known = NETSUM_CALL_INIT;
  if (call->size < sizeof known.size + sizeof known.deadline_seconds) {
    throw Error(ErrorCode::bad_argument,
                "netsum_call.size is " + std::to_string(call->size) + ": begin with NETSUM_CALL_INIT");
  }
  // A program that was compiled with an older header knows less of it, and one with a newer header more.
  std::copy_n(reinterpret_cast<const std::byte*>(call), std::min(call->size, sizeof known),
              reinterpret_cast<std::byte*>(&known));
  CallOptions options{.tag = known.tag, .waits_for_all = known.waits_for_all != 0};
  constexpr double most_seconds = 1e9;
  if (!(known.deadline_seconds >= 0 && known.deadline_seconds <= most_seconds)) {
    throw Error(ErrorCode::bad_argument,
                "netsum_call.deadline_seconds must be between 0 and 1e9; 0 is the operation's default");
  }
  if (known.deadline_seconds > 0) {
    options.deadline =
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(known.deadline_seconds));
  }
  if (!std::isfinite(known.factor))
    throw Error(ErrorCode::bad_argument, "netsum_call.factor is infinite or NaN: give 1 to leave the values as they are");
  if (known.factor != 1) options.factor = known.factor;
  return options;
}

size_t give(const std::vector<std::uint32_t>& all, uint32_t* ranks, size_t room) {
  if (ranks != nullptr) std::copy_n(all.begin(), std::min(room, all.size()), ranks);
  return all.size();
}

// Of `parts` such lengths side by side.
std::size_t whole(size_t length, std::uint32_t parts) {
  std::size_t product = 0;
  if (!__builtin_mul_overflow(length, parts, &product)) return product;
  throw Error(ErrorCode::bad_argument,
              std::to_string(parts) + " parts of " + std::to_string(length) + " elements are too many");
}

netsum::Options options_of(const netsum_options& options) {
  std::set<std::string> known;
  const netsum::settings::Settings settings = netsum::settings::read([&](const std::string& name) {
    known.insert(name);
    const auto found = options.given.find(name);
    if (found != options.given.end()) return found->second;
    return options.from_environment ? netsum::settings::from_environment(name) : std::string();
  });
  for (const char* const other : {"NETSUM_MODE", "NETSUM_JOB", "NETSUM_LOG", "NETSUM_ADDRESS"}) known.erase(other);
  for (const auto& [name, value] : options.given) {
    if (known.contains(name)) continue;
    throw Error(ErrorCode::bad_argument,
                "'" + name + "' is not a setting, or not one of this protocol: docs/pytorch.md lists them");
  }
  netsum::Options result = settings.options;
  if (result.aggregators.empty()) {
    throw Error(ErrorCode::bad_argument,
                "no aggregator is named: set NETSUM_SWITCH, or NETSUM_PS for ATP, to its HOST:PORT");
  }
  result.log = options.log;
  result.on_failure = options.on_failure;
  result.stop = options.stop.get_token();
  return result;
}

struct Tensors {
  ConstTensorView in;
  TensorView out;
};
Tensors tensors(const void* in, std::size_t in_length, void* out, std::size_t out_length, netsum_dtype dtype) {
  const auto type = cast<DType>(dtype);
  return {{in, in_length, type}, {out, out_length, type}};
}

std::vector<TensorView> tensors(void* const* inout, const size_t* lengths, std::size_t count, netsum_dtype dtype) {
  std::vector<TensorView> list;
  for (std::size_t i = 0; i < count; ++i) {
    list.push_back({(&given(inout, "inout"))[i], (&given(lengths, "lengths"))[i], cast<DType>(dtype)});
  }
  return list;
}

// One length for each rank; the sum is that of a tensor of all parts. A sum that wraps is refused as too short.
struct Counts {
  Counts(const size_t* counts, const netsum::Communicator& communicator)
      : each(&given(counts, "counts"), communicator.world_size()),
        own(each[communicator.rank()]),
        all(std::accumulate(each.begin(), each.end(), std::size_t{0})) {}

  std::span<const std::size_t> each;
  std::size_t own, all;
};

netsum_status issue(netsum_communicator* communicator, netsum_work** work,
                    const std::function<netsum::Work(netsum::Communicator&)>& call) {
  return attempt([&] {
    netsum_work*& result = given(work, "work");
    result = new netsum_work{call(given(communicator, "communicator").communicator)};
  });
}

}  // namespace

extern "C" {

const char* netsum_version() {
  return NETSUM_VERSION;
}

const char* netsum_status_name(netsum_status status) {
  if (status == NETSUM_OK) return "ok";
  if (status < NETSUM_OK || status > NETSUM_EXCLUDED) return "?";
  return netsum::to_string(static_cast<ErrorCode>(static_cast<int>(status) - 1));
}

const char* netsum_last_error() {
  return last_error ? last_error->what() : "";
}

size_t netsum_last_error_ranks(uint32_t* ranks, size_t room) {
  if (!last_error) return 0;
  return give(last_error->details().ranks, ranks, room);
}

int netsum_last_error_operation(uint64_t* operation) {
  if (!last_error || !last_error->details().operation || operation == nullptr) return 0;
  *operation = *last_error->details().operation;
  return 1;
}

const char* netsum_last_error_aggregator() {
  return last_error ? last_error->details().aggregator.c_str() : "";
}

const char* netsum_last_error_call(uint32_t rank) {
  if (!last_error) return "";
  const std::vector<netsum::RankCall>& calls = last_error->details().calls;
  const auto found = std::find_if(calls.begin(), calls.end(), [&](const auto& each) { return each.rank == rank; });
  return found == calls.end() ? "" : found->call.c_str();
}

netsum_options* netsum_options_create() {
  return new (std::nothrow) netsum_options;
}

void netsum_options_destroy(netsum_options* options) {
  delete options;
}

netsum_status netsum_options_set(netsum_options* options, const char* name, const char* value) {
  return attempt([&] { given(options, "options").given[&given(name, "name")] = &given(value, "value"); });
}

netsum_status netsum_options_set_from_environment(netsum_options* options) {
  return attempt([&] { given(options, "options").from_environment = true; });
}

netsum_status netsum_options_set_log(netsum_options* options, void (*log)(void* context, const char* line), void* context) {
  return attempt([&] {
    given(log, "log");
    given(options, "options").log = [log, context](const std::string& line) { log(context, line.c_str()); };
  });
}

netsum_status netsum_options_set_on_failure(netsum_options* options, void (*on_failure)(void* context, netsum_status status),
                                            void* context) {
  return attempt([&] {
    given(on_failure, "on_failure");
    given(options, "options").on_failure = [on_failure, context](const Error& error) { on_failure(context, failed(error)); };
  });
}

netsum_status netsum_options_stop(netsum_options* options) {
  return attempt([&] { given(options, "options").stop.request_stop(); });
}

netsum_status netsum_connect(const netsum_options* options, const char* job, uint32_t rank, uint32_t world_size,
                             netsum_communicator** communicator) {
  return attempt([&] {
    netsum_communicator*& result = given(communicator, "communicator");
    netsum::Options all = options_of(given(options, "options"));
    all.job = &given(job, "job");
    all.rank = rank;
    all.world_size = world_size;
    result = new netsum_communicator{netsum::Communicator::connect(all)};
  });
}

netsum_status netsum_dup(netsum_communicator* communicator, netsum_communicator** copy) {
  return attempt([&] {
    netsum_communicator*& result = given(copy, "copy");
    result = new netsum_communicator{given(communicator, "communicator").communicator.dup()};
  });
}

netsum_status netsum_split(netsum_communicator* communicator, int64_t color, int32_t key, netsum_communicator** group) {
  return attempt([&] {
    netsum_communicator*& result = given(group, "group");
    if (color < NETSUM_NO_COLOR || color > UINT32_MAX) {
      throw Error(ErrorCode::bad_argument,
                  "color " + std::to_string(color) + " is not NETSUM_NO_COLOR, or between 0 and UINT32_MAX");
    }
    const auto own = color == NETSUM_NO_COLOR ? std::nullopt : std::optional(static_cast<std::uint32_t>(color));
    std::optional<netsum::Communicator> part = given(communicator, "communicator").communicator.split(own, key);
    result = part ? new netsum_communicator{std::move(*part)} : nullptr;
  });
}

void netsum_destroy(netsum_communicator* communicator) {
  delete communicator;
}

uint32_t netsum_rank(const netsum_communicator* communicator) {
  return communicator == nullptr ? 0 : communicator->communicator.rank();
}

uint32_t netsum_world_size(const netsum_communicator* communicator) {
  return communicator == nullptr ? 0 : communicator->communicator.world_size();
}

netsum_status netsum_statistic(const netsum_communicator* communicator, const char* name, uint64_t* value) {
  return attempt([&] {
    const netsum::Statistics all = given(communicator, "communicator").communicator.statistics();
    const std::pair<const char*, std::uint64_t> counters[] = {{"packets_sent", all.packets_sent},
                                                              {"packets_received", all.packets_received},
                                                              {"packets_retransmitted", all.packets_retransmitted},
                                                              {"packets_dropped_down", all.packets_dropped_down},
                                                              {"wire_bytes_sent", all.wire_bytes_sent},
                                                              {"wire_bytes_received", all.wire_bytes_received},
                                                              {"operations", all.operations},
                                                              {"lanes", all.lanes},
                                                              {"slots", all.slots},
                                                              {"packet_elements", all.packet_elements},
                                                              {"window", all.window},
                                                              {"values_examined", all.values_examined},
                                                              {"values_underflowed", all.values_underflowed},
                                                              {"values_clamped", all.values_clamped},
                                                              {"shared_memory", all.shared_memory ? 1U : 0U},
                                                              {"bytes_copied", all.bytes_copied},
                                                              {"busy_nanoseconds", all.busy_nanoseconds}};
    const std::string wanted = &given(name, "name");
    const auto found =
        std::find_if(std::begin(counters), std::end(counters), [&](const auto& each) { return wanted == each.first; });
    if (found == std::end(counters))
      throw Error(ErrorCode::bad_argument, "'" + wanted + "' is not a counter of netsum::Statistics");
    given(value, "value") = found->second;
  });
}

int netsum_can_reduce(const netsum_communicator* communicator, netsum_op op, netsum_dtype dtype) {
  int possible = 0;
  static_cast<void>(attempt([&] {
    const auto& comm = given(communicator, "communicator").communicator;
    possible = comm.can_reduce(cast<ReduceOp>(op), cast<DType>(dtype)) ? 1 : 0;
  }));
  return possible;
}

netsum_status netsum_failure(const netsum_communicator* communicator) {
  return attempt([&] {
    if (const auto error = given(communicator, "communicator").communicator.failure()) throw Error(*error);
  });
}

netsum_status netsum_abort(netsum_communicator* communicator, const char* reason) {
  return attempt([&] { given(communicator, "communicator").communicator.abort(&given(reason, "reason")); });
}

size_t netsum_members(const netsum_communicator* communicator, uint32_t* ranks, size_t room) {
  return attempted(size_t{0}, [&] { return give(given(communicator, "communicator").communicator.members(), ranks, room); });
}

size_t netsum_newcomers(const netsum_communicator* communicator, uint32_t* ranks, size_t room) {
  return attempted(size_t{0},
                   [&] { return give(given(communicator, "communicator").communicator.newcomers(), ranks, room); });
}

netsum_status netsum_admit(netsum_communicator* communicator, const netsum_call* call) {
  return attempt([&] { static_cast<void>(given(communicator, "communicator").communicator.admit(options_of(call))); });
}

uint64_t netsum_behind(const netsum_communicator* communicator) {
  return attempted(uint64_t{0}, [&] { return given(communicator, "communicator").communicator.behind(); });
}

uint64_t netsum_next_operation(const netsum_communicator* communicator) {
  return attempted(uint64_t{0}, [&] { return given(communicator, "communicator").communicator.next_operation(); });
}

netsum_status netsum_all_reduce(netsum_communicator* communicator, const void* in, void* out, size_t length,
                                netsum_dtype dtype, netsum_op op, const netsum_call* call) {
  return attempt([&] {
    netsum::Communicator& c = given(communicator, "communicator").communicator;
    const Tensors t = tensors(in, length, out, length, dtype);
    c.all_reduce(t.in, t.out, cast<ReduceOp>(op), options_of(call));
  });
}

netsum_status netsum_all_reduce_coalesced(netsum_communicator* communicator, void* const* inout, const size_t* lengths,
                                          size_t count, netsum_dtype dtype, netsum_op op, const netsum_call* call) {
  return attempt([&] {
    netsum::Communicator& c = given(communicator, "communicator").communicator;
    c.all_reduce_coalesced(tensors(inout, lengths, count, dtype), cast<ReduceOp>(op), options_of(call));
  });
}

netsum_status netsum_reduce(netsum_communicator* communicator, void* inout, size_t length, netsum_dtype dtype, netsum_op op,
                            uint32_t root, const netsum_call* call) {
  return attempt([&] {
    netsum::Communicator& c = given(communicator, "communicator").communicator;
    const Tensors t = tensors(inout, length, inout, length, dtype);
    c.reduce(t.out, cast<ReduceOp>(op), root, options_of(call));
  });
}

netsum_status netsum_reduce_scatter(netsum_communicator* communicator, const void* in, void* out, size_t length_of_out,
                                    netsum_dtype dtype, netsum_op op, const netsum_call* call) {
  return attempt([&] {
    netsum::Communicator& c = given(communicator, "communicator").communicator;
    const Tensors t = tensors(in, whole(length_of_out, c.world_size()), out, length_of_out, dtype);
    c.reduce_scatter(t.in, t.out, cast<ReduceOp>(op), options_of(call));
  });
}

netsum_status netsum_all_gather(netsum_communicator* communicator, const void* in, void* out, size_t length_of_in,
                                netsum_dtype dtype, const netsum_call* call) {
  return attempt([&] {
    netsum::Communicator& c = given(communicator, "communicator").communicator;
    const Tensors t = tensors(in, length_of_in, out, whole(length_of_in, c.world_size()), dtype);
    c.all_gather(t.in, t.out, options_of(call));
  });
}

netsum_status netsum_reduce_scatter_v(netsum_communicator* communicator, const void* in, void* out, const size_t* counts,
                                      netsum_dtype dtype, netsum_op op, const netsum_call* call) {
  return attempt([&] {
    netsum::Communicator& c = given(communicator, "communicator").communicator;
    const Counts parts(counts, c);
    const Tensors t = tensors(in, parts.all, out, parts.own, dtype);
    c.reduce_scatter_v(t.in, t.out, cast<ReduceOp>(op), parts.each, options_of(call));
  });
}

netsum_status netsum_all_gather_v(netsum_communicator* communicator, const void* in, void* out, const size_t* counts,
                                  netsum_dtype dtype, const netsum_call* call) {
  return attempt([&] {
    netsum::Communicator& c = given(communicator, "communicator").communicator;
    const Counts parts(counts, c);
    const Tensors t = tensors(in, parts.own, out, parts.all, dtype);
    c.all_gather_v(t.in, t.out, parts.each, options_of(call));
  });
}

netsum_status netsum_broadcast(netsum_communicator* communicator, void* inout, size_t length, netsum_dtype dtype,
                               uint32_t root, const netsum_call* call) {
  return attempt([&] {
    netsum::Communicator& c = given(communicator, "communicator").communicator;
    const Tensors t = tensors(inout, length, inout, length, dtype);
    c.broadcast(t.out, root, options_of(call));
  });
}

netsum_status netsum_barrier(netsum_communicator* communicator, const netsum_call* call) {
  return attempt([&] {
    netsum::Communicator& c = given(communicator, "communicator").communicator;
    c.barrier(options_of(call));
  });
}

netsum_status netsum_all_reduce_async(netsum_communicator* communicator, const void* in, void* out, size_t length,
                                      netsum_dtype dtype, netsum_op op, const netsum_call* call, netsum_work** work) {
  return issue(communicator, work, [&](netsum::Communicator& c) {
    const Tensors t = tensors(in, length, out, length, dtype);
    return c.all_reduce_async(t.in, t.out, cast<ReduceOp>(op), options_of(call));
  });
}

netsum_status netsum_all_reduce_coalesced_async(netsum_communicator* communicator, void* const* inout, const size_t* lengths,
                                                size_t count, netsum_dtype dtype, netsum_op op, const netsum_call* call,
                                                netsum_work** work) {
  return issue(communicator, work, [&](netsum::Communicator& c) {
    return c.all_reduce_coalesced_async(tensors(inout, lengths, count, dtype), cast<ReduceOp>(op), options_of(call));
  });
}

netsum_status netsum_reduce_async(netsum_communicator* communicator, void* inout, size_t length, netsum_dtype dtype,
                                  netsum_op op, uint32_t root, const netsum_call* call, netsum_work** work) {
  return issue(communicator, work, [&](netsum::Communicator& c) {
    const Tensors t = tensors(inout, length, inout, length, dtype);
    return c.reduce_async(t.out, cast<ReduceOp>(op), root, options_of(call));
  });
}

netsum_status netsum_reduce_scatter_async(netsum_communicator* communicator, const void* in, void* out, size_t length_of_out,
                                          netsum_dtype dtype, netsum_op op, const netsum_call* call, netsum_work** work) {
  return issue(communicator, work, [&](netsum::Communicator& c) {
    const Tensors t = tensors(in, whole(length_of_out, c.world_size()), out, length_of_out, dtype);
    return c.reduce_scatter_async(t.in, t.out, cast<ReduceOp>(op), options_of(call));
  });
}

netsum_status netsum_all_gather_async(netsum_communicator* communicator, const void* in, void* out, size_t length_of_in,
                                      netsum_dtype dtype, const netsum_call* call, netsum_work** work) {
  return issue(communicator, work, [&](netsum::Communicator& c) {
    const Tensors t = tensors(in, length_of_in, out, whole(length_of_in, c.world_size()), dtype);
    return c.all_gather_async(t.in, t.out, options_of(call));
  });
}

netsum_status netsum_reduce_scatter_v_async(netsum_communicator* communicator, const void* in, void* out,
                                            const size_t* counts, netsum_dtype dtype, netsum_op op, const netsum_call* call,
                                            netsum_work** work) {
  return issue(communicator, work, [&](netsum::Communicator& c) {
    const Counts parts(counts, c);
    const Tensors t = tensors(in, parts.all, out, parts.own, dtype);
    return c.reduce_scatter_v_async(t.in, t.out, cast<ReduceOp>(op), parts.each, options_of(call));
  });
}

netsum_status netsum_all_gather_v_async(netsum_communicator* communicator, const void* in, void* out, const size_t* counts,
                                        netsum_dtype dtype, const netsum_call* call, netsum_work** work) {
  return issue(communicator, work, [&](netsum::Communicator& c) {
    const Counts parts(counts, c);
    const Tensors t = tensors(in, parts.own, out, parts.all, dtype);
    return c.all_gather_v_async(t.in, t.out, parts.each, options_of(call));
  });
}

netsum_status netsum_broadcast_async(netsum_communicator* communicator, void* inout, size_t length, netsum_dtype dtype,
                                     uint32_t root, const netsum_call* call, netsum_work** work) {
  return issue(communicator, work, [&](netsum::Communicator& c) {
    const Tensors t = tensors(inout, length, inout, length, dtype);
    return c.broadcast_async(t.out, root, options_of(call));
  });
}

netsum_status netsum_barrier_async(netsum_communicator* communicator, const netsum_call* call, netsum_work** work) {
  return issue(communicator, work, [&](netsum::Communicator& c) { return c.barrier_async(options_of(call)); });
}

int netsum_work_done(const netsum_work* work) {
  int done = 0;
  static_cast<void>(attempt([&] { done = given(work, "work").work.done() ? 1 : 0; }));
  return done;
}

netsum_status netsum_wait(netsum_work* work) {
  return attempt([&] { given(work, "work").work.wait(); });
}

netsum_status netsum_wait_for(netsum_work* work, double seconds, int* ended) {
  return attempt([&] {
    if (!(seconds >= 0)) throw Error(ErrorCode::bad_argument, "seconds must not be negative");
    const std::chrono::duration<double> most = std::chrono::hours(24 * 365);
    const auto patience =
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::min(std::chrono::duration<double>(seconds), most));
    int& result = given(ended, "ended");
    result = given(work, "work").work.wait_for(patience) ? 1 : 0;
  });
}

size_t netsum_work_members(const netsum_work* work, uint32_t* ranks, size_t room) {
  return attempted(size_t{0}, [&] { return give(given(work, "work").work.members(), ranks, room); });
}

netsum_status netsum_work_on_done(netsum_work* work, void (*then)(void* context), void* context) {
  return attempt([&] {
    given(then, "then");
    given(work, "work").work.on_done([then, context] { then(context); });
  });
}

netsum_status netsum_work_descriptor(netsum_work* work, int* descriptor) {
  return attempt([&] {
    int& result = given(descriptor, "descriptor");
    result = given(work, "work").work.descriptor();
  });
}

void netsum_work_destroy(netsum_work* work) {
  delete work;
}

}  // extern "C"
