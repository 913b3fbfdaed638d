// The blocking façade: one rank's membership in a job, and its collective calls.
//
//   auto comm = netsum::Communicator::connect({.aggregators = {"10.0.0.1:7170"}, .job = "bert", .rank = 0, .world_size =
//   4}); comm.all_reduce(gradients, netsum::ReduceOp::sum);  // a std::vector<float>
//
// Every rank issues the same calls in the same order; calls are matched by their number and checked by a signature of
// collective, operation, dtype, length and tag.
//
// Threads. Calls of a communicator are made by one thread at a time: collective ones (blocking, asynchronous, allocate(),
// dup(), split()), next_operation(), and moving it. Threads may take turns; a call that begins while another thread is
// inside one throws `bad_argument`, and has no effect, here or at other ranks. To call from several threads, dup() it for
// each. A tag does not change this: it names the call, so that ranks that disagree get an error, and does not order calls.
//   Any number of asynchronous operations may be pending; each Work is one thread's at a time, and any thread's. abort(),
// failure(), can_reduce(), statistics(), placement(), rank() and world_size() are any thread's at any time.
//   A communicator that is destroyed while another thread is inside a call fails that call with `closed`, and waits for its
//   end.
// Every call of a moved-from communicator or Work throws `closed`; so do those that a child of fork() inherits.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "netsum/error.h"
#include "netsum/export.h"
#include "netsum/types.h"

namespace netsum {

// Whether ranks that are all on the aggregator's host sum in shared memory: if they can, never, or fail if they cannot.
enum class SharedMemory : std::uint8_t { automatic, off, required };

// The protocols, each with the settings that are its own.

struct SwitchMl {
  WireFormat wire = WireFormat::native;  // floats on the wire; the same on all ranks
  bool nearest = false;                  // int8, int4: this rank rounds its values to nearest, not up or down by chance
  bool multicast = true;                 // results come by IP multicast, where the aggregator offers it
  bool local_checksums = false;          // checksums on this host's loopback too
  // Without recovery (docs/shared-memory.md); decided for all ranks together as they join.
  SharedMemory shared_memory = SharedMemory::automatic;
  bool spin = false;  // in shared memory, threads never sleep in an operation, but yield the CPU; requires busy_poll
  // "host:port" of the switch that this rank is at, in a tree whose roots are the aggregators (§7); empty: the rank is next
  // to the aggregators.
  std::string switch_address{};
};

// The aggregators are the job's parameter servers.
struct Atp {
  std::string switch_address{};    // "host:port" of the switch that this rank is at; empty: only the servers sum
  bool congestion_control = true;  // false: always use the whole window
  bool local_checksums = false;    // checksums on this host's loopback too
};

struct NetReduce {
  // "host:port" of the switch that this rank is at, in a tree whose root is the aggregator (the spine); empty: the rank is
  // next to the aggregator.
  std::string switch_address{};
  std::uint32_t message_packets = 0;  // packets per message; 0: a quarter of the window, at most 64 KiB
  // False: marked packets (ECN) change nothing. RDMA hardware has its own.
  bool congestion_control = true;
  // The RDMA device ("mlx5_0") that carries this rank's rings; its aggregators are then bumps in the wire
  // (docs/operate-bump.md). Empty: netsum's own endpoint, over UDP.
  std::string verbs{};
  VerbsSettings verbs_settings{};
  std::optional<std::uint32_t> first_psn{};  // tests: for this rank's connections; empty: random
};

using Protocol = std::variant<SwitchMl, Atp, NetReduce>;
// "switchml", "atp" or "netreduce", with default settings. Throws Error: bad_argument.
[[nodiscard]] NETSUM_API Protocol protocol_named(const std::string& name);

// `to` = `from` with each value rounded to nearest as WireFormat::int8 or int4 has it: in an all-reduce of that format, of
// the same tensor, `to` is not rounded at its rank. For programs that give back what is rounded (error feedback). float32 or
// bfloat16, as many in both, which may be the same memory. Throws Error (bad_argument).
NETSUM_API void round_as(WireFormat wire, ConstTensorView from, TensorView to);

// Sums that the aggregators cannot read (docs/private-sums.md): SwitchML's, and NetReduce's of int32. Between hosts and on
// one: ranks do not sum in shared memory.
struct PrivateSums {
  // A secret of the ranks that no aggregator knows, the same on all, of at least 16 bytes: unpredictable ones, no password.
  std::string key{};
  // Floats above 2^fixed_scale in magnitude count as that (Statistics::values_clamped), and all have the resolution that
  // this leaves: -126 to 128. Empty: blocks of 256 floats have scales of their own, and aggregators see those. SwitchML, but
  // for chips.
  std::optional<int> fixed_scale{};
};

struct Options {
  Protocol protocol = SwitchMl{};
  // "host:port" each, in the same order on all ranks; chunks are sharded over all of them. Or "srv:NAME", service records in
  // DNS, or "@FILE", a file with an address a line.
  std::vector<std::string> aggregators{};
  // Serve a job with recovery in place of all aggregators, while none of these can be reached by all ranks. Addresses as
  // above; the same on all ranks.
  std::vector<std::string> standbys{};
  std::string job = "default";  // ranks with the same job name at the same aggregators meet
  // The number of the job's start, for launchers that start all ranks again under the same name: ranks of a later one end
  // the earlier job at once, if its processes died without leaving it, and ranks of an earlier one are refused.
  std::uint64_t generation = 0;
  std::uint32_t rank = 0;        // 0 ... world_size-1
  std::uint32_t world_size = 1;  // 1 ... 4096
  // SwitchML: a multiple of 64 up to 1024, or of 256 up to 15360, of 32 bits: packets of 16-bit floats hold twice as many.
  // ATP: 1 to 10880, and no more than a slot of its switch holds. NetReduce: 64 to 1024, a power of two: RoCE's path MTU in
  // elements of 4 bytes. 0: the most that all ranks' paths carry.
  std::uint32_t packet_elements = 0;
  // Window per lane, a power of two, in packets (NetReduce: in messages). 0: from the measured bandwidth-delay product; for
  // ATP, 256 chunks, of which congestion control uses as many as the network carries.
  std::uint32_t slots = 0;
  std::uint32_t threads = 1;          // I/O threads of this worker, shared by the process's communicators
  std::uint32_t thread_set = 0;       // communicators with different ones have I/O threads of their own
  bool pin_threads = false;           // each to a CPU that no other rank of this host has pinned a thread to, near the link
  std::vector<std::uint32_t> cpus{};  // thread i to the i-th of these instead, and again from the first
  DataPath data_path = DataPath::sockets;  // to aggregators on other hosts
  DpdkOptions dpdk{};
  bool busy_poll = true;                               // threads look again for a moment before they sleep
  std::chrono::milliseconds connect_deadline{30'000};  // to reach every aggregator, and for all ranks to join
  std::chrono::milliseconds heartbeat_timeout{default_heartbeat_timeout_ms};  // an aggregator silent for this long is dead
  // The same with survivors, if there is another aggregator or a standby.
  std::chrono::milliseconds survivor_timeout{default_survivor_timeout_ms};
  std::chrono::milliseconds operation_deadline{300'000};  // for operations without their own deadline
  // How long the ranks wait for a rank that died or left to be started again, and for aggregators that died; then they go on
  // with the interrupted operation (docs/operate-failures.md). 0: a death ends the job. Either all ranks give 0 or none
  // does. Costs memory for each result, from which it is copied when its call ends; until then a tensor has its input.
  std::chrono::milliseconds recovery{0};
  // Fewest ranks with which the job goes on without those that have died, at once (docs/elastic.md); it waits for `recovery`
  // only if fewer are left. 0: it waits for all. All ranks give the same. With several aggregators more than half of all
  // ranks. Requires recovery.
  std::uint32_t survivors = 0;
  // A call ends without the ranks that have not made it so long after the first one, unless fewer than `survivors` are left.
  // They get the same result once they make the call (docs/elastic.md). 0: never. All ranks give the same. Requires
  // survivors.
  std::chrono::milliseconds straggler_deadline{0};
  // Bytes of results kept for ranks that start again, or are late. Empty: 256 MiB; 0 with survivors and no straggler
  // deadline, as new processes need none.
  std::optional<std::size_t> recovery_memory{};
  // The number of this rank's first call, if it is started again with its own state, e.g. from a checkpoint. Empty: it goes
  // on where the others are; Communicator::next_operation() then says where.
  std::optional<std::uint64_t> first_operation{};
  std::string token{};   // shared secret, if the aggregator wants one
  std::string tls_ca{};  // PEM file: switches the control channel to TLS
  // The least protection of packets that go to other hosts; the aggregators may give more. Needs tls_ca.
  PacketSecurity packet_security = PacketSecurity::none;
  bool require_keys = false;  // refuse to join rather than send packets to other hosts without keys: at least `tag`
  std::optional<PrivateSums> private_sums{};
  double loss = 0;  // tests and benchmarks: drop each received datagram with this probability
  std::uint64_t loss_seed = 1;
  // One line per call, from any thread; must not wait for an operation. Empty: silent.
  std::function<void(const std::string&)> log{};
  // Called once, if the communicator fails without a call of its owner's to end it (abort(), its destruction, a stop): on
  // one of netsum's threads, once no operation is pending, also if none was. It must be short, and must not call a
  // communicator.
  std::function<void(const Error&)> on_failure{};
  // Once a stop is requested, connect() ends with `closed`, and the communicator as by abort(), on the thread that requests
  // it.
  std::stop_token stop{};
};

struct CallOptions {
  std::optional<std::chrono::nanoseconds> deadline{};  // from the call; empty: Options::operation_deadline
  std::uint32_t tag = 0;                               // must be equal on all ranks
  bool waits_for_all = false;      // Options::straggler_deadline does not end this call: all ranks give the same
  std::optional<double> factor{};  // sum and avg of floats: this rank's values are multiplied by it first, and rounded
  // Blocking calls, and Work::wait(): the thread calls this again and again while it waits for other ranks, and sleeps for
  // 0.1 ms at most in between. For the progress of another library, without which the others might never reach the call
  // (MPI). It may not call this communicator, nor throw. Empty: the thread sleeps until something comes.
  std::function<void()> while_waiting{};
};

// Counters of this rank since connect. Bytes count Ethernet (14) + IP + UDP + datagram.
struct Statistics {
  std::uint64_t packets_sent = 0, packets_received = 0, packets_retransmitted = 0, packets_dropped_down = 0;
  std::uint64_t wire_bytes_sent = 0, wire_bytes_received = 0;
  std::uint64_t operations = 0;
  std::uint32_t lanes = 0, slots = 0, packet_elements = 0;
  std::uint32_t window = 0;  // packets that may be in flight now, over all lanes: the slots, or ATP's congestion window
  // How many values that were not 0 a scale made 0, in a sample (docs/numerics.md, "What becomes 0").
  std::uint64_t values_examined = 0, values_underflowed = 0;
  std::uint64_t values_clamped = 0;  // all that were above PrivateSums::fixed_scale
  bool shared_memory = false;        // there are no packets
  std::uint64_t bytes_copied = 0;    // shared memory: to and from tensors that lie outside it
  // Time with packets in hand or to send, of all threads that move packets. One that polls takes its CPU all the time.
  std::uint64_t busy_nanoseconds = 0;
};

// Memory for tensors, from Communicator::allocate(). Copies refer to the same memory; it is freed after the last copy, once
// the operations on tensors in it have ended. It may outlive its communicator. A child of fork() has a copy.
class NETSUM_API TensorMemory {
 public:
  TensorMemory() = default;
  TensorMemory(std::shared_ptr<std::byte> begin, std::size_t bytes) : begin_(std::move(begin)), bytes_(bytes) {}

  [[nodiscard]] std::byte* data() const { return begin_.get(); }
  [[nodiscard]] std::size_t size() const { return bytes_; }
  [[nodiscard]] std::span<std::byte> bytes() const { return {data(), size()}; }
  // As many values of type T as fit.
  template <class T>
  [[nodiscard]] std::span<T> as() const {
    return {reinterpret_cast<T*>(data()), size() / sizeof(T)};
  }

 private:
  std::shared_ptr<std::byte> begin_;
  std::size_t bytes_ = 0;
};

// One pending operation. The tensor is lent until wait() returns or throws, or the destructor has run.
class NETSUM_API Work {
 public:
  struct State;
  explicit Work(std::shared_ptr<State> state);
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  // Waits for the loan to end, and swallows the error. While an exception unwinds, an operation that has not ended after
  // Options::heartbeat_timeout is ended by abort(): the other ranks may never come.
  ~Work();

  [[nodiscard]] bool done() const;  // ended, with a result or an error; never waits
  void wait();                      // throws Error if the operation failed; the buffer is then unspecified
  // Waits for so long at most. True: as wait(). False: it goes on, and so does the communicator.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds patience);

  // Once wait() has returned: the ranks whose values the result has in it, ascending. All, but with Options::survivors; a
  // list of tensors that were not summed over the same ranks names those in all of them.
  [[nodiscard]] std::vector<std::uint32_t> members() const;

  // Calls `then` once done(): on one of netsum's threads, or before this returns. `then` must be short, as packets wait,
  // must not throw, and must not call a communicator or a Work; it may run later than ~Work, with what it owns. The result
  // is the caller's after wait(), which then does not wait.
  void on_done(std::function<void()> then);
  // Readable once done(), for poll() and event loops. The Work closes it. Throws Error: internal (no descriptor is left).
  [[nodiscard]] int descriptor();

 private:
  [[nodiscard]] State& state() const;  // throws if moved from
  std::shared_ptr<State> state_;
};

namespace collective {
class Connector;
}

class NETSUM_API Communicator {
 public:
  // Joins the job at every aggregator and returns when all ranks have. Throws Error: unreachable, refused, deadline.
  [[nodiscard]] static Communicator connect(const Options& options);

  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  ~Communicator();  // leaves the job; ends a call that another thread is inside

  [[nodiscard]] std::uint32_t rank() const;
  [[nodiscard]] std::uint32_t world_size() const;
  // Of the latest blocking call, as Work::members().
  [[nodiscard]] std::vector<std::uint32_t> members() const;
  // With Options::survivors: lets new processes of ranks that died in, if some wait, and returns the ranks that are in the
  // job then. All ranks in the job call it, in the same order relative to the operations below; connect() of a new process
  // returns when they do. Its next call is that of the others after admit(), and its state is the caller's to bring. Waits
  // for the operations that are pending here, and for ranks that are late.
  std::vector<std::uint32_t> admit(const CallOptions& call = {});
  // With Options::straggler_deadline: how many of the next calls the other ranks have ended without this one, as last heard.
  // They return at once, whatever this rank gives to them.
  [[nodiscard]] std::uint64_t behind() const;
  // The members that the latest admit() let in, on all ranks: on these it was their connect().
  [[nodiscard]] std::vector<std::uint32_t> newcomers() const;
  // The number of the next call: the count of calls before it, in this process and in the rank's former processes.
  [[nodiscard]] std::uint64_t next_operation() const;

  // Each of these throws Error. After `bad_argument` nothing was sent, and the communicator goes on; after any other error
  // it has failed, and every later call throws the same code. docs/collectives.md says what travels, and which protocol has
  // what. A tensor is a view, or a vector, array or span of elements.
  void all_reduce(TensorView inout, ReduceOp op, const CallOptions& call = {});
  // `out` is `in`, or apart from it; both have the same elements.
  void all_reduce(ConstTensorView in, TensorView out, ReduceOp op, const CallOptions& call = {});
  // All-reduces of a list of tensors of one type, apart from each other. All tensors of up to 16 KiB are copied into one
  // operation. The list has the same lengths on all ranks, and is read during this call alone.
  void all_reduce_coalesced(std::span<const TensorView> inout, ReduceOp op, const CallOptions& call = {});
  // The result goes to `root` alone; the others' tensors stay as they are.
  void reduce(TensorView inout, ReduceOp op, std::uint32_t root, const CallOptions& call = {});
  // `in` has as many parts as ranks, each as long as `out`, which gets the reduction of part rank(). `out` is that part of
  // `in`, or apart from it.
  void reduce_scatter(ConstTensorView in, TensorView out, ReduceOp op, const CallOptions& call = {});
  void broadcast(TensorView inout, std::uint32_t root, const CallOptions& call = {});
  // `out` has as many parts as ranks, each as long as `in`: part i is rank i's `in`. `in` is its part of `out`, or apart
  // from it.
  void all_gather(ConstTensorView in, TensorView out, const CallOptions& call = {});
  void barrier(const CallOptions& call = {});
  // The same of parts of different lengths: rank i's has counts[i] elements, and may have none. The counts are equal on all
  // ranks, and read during this call alone.
  void reduce_scatter_v(ConstTensorView in, TensorView out, ReduceOp op, std::span<const std::size_t> counts,
                        const CallOptions& call = {});
  void all_gather_v(ConstTensorView in, TensorView out, std::span<const std::size_t> counts, const CallOptions& call = {});

  // Memory for tensors, zeroed and page-aligned. Where ranks share memory, the others see it, and sums of tensors in it copy
  // nothing in or out; elsewhere it is ordinary memory. All ranks call it, in the same order relative to the operations
  // above; sizes may differ. Memory that ranks have released returns to the system when all have called it again, or at the
  // end.
  [[nodiscard]] TensorMemory allocate(std::size_t bytes, const CallOptions& call = {});

  [[nodiscard]] Work all_reduce_async(TensorView inout, ReduceOp op, const CallOptions& call = {});
  [[nodiscard]] Work all_reduce_async(ConstTensorView in, TensorView out, ReduceOp op, const CallOptions& call = {});
  [[nodiscard]] Work all_reduce_coalesced_async(std::span<const TensorView> inout, ReduceOp op,
                                                const CallOptions& call = {});
  [[nodiscard]] Work reduce_async(TensorView inout, ReduceOp op, std::uint32_t root, const CallOptions& call = {});
  [[nodiscard]] Work reduce_scatter_async(ConstTensorView in, TensorView out, ReduceOp op, const CallOptions& call = {});
  [[nodiscard]] Work broadcast_async(TensorView inout, std::uint32_t root, const CallOptions& call = {});
  [[nodiscard]] Work all_gather_async(ConstTensorView in, TensorView out, const CallOptions& call = {});
  [[nodiscard]] Work reduce_scatter_v_async(ConstTensorView in, TensorView out, ReduceOp op,
                                            std::span<const std::size_t> counts, const CallOptions& call = {});
  [[nodiscard]] Work all_gather_v_async(ConstTensorView in, TensorView out, std::span<const std::size_t> counts,
                                        const CallOptions& call = {});
  [[nodiscard]] Work barrier_async(const CallOptions& call = {});

  // A second communicator of the same ranks, with its own slots; all ranks call it, in the same order.
  [[nodiscard]] Communicator dup();
  // A communicator for each color, of the ranks that give it, ordered by key, and where keys are equal by their ranks here.
  // A rank without a color gets none. All ranks call it, in the same order relative to the operations above. Not with
  // Options::recovery: a rank that is started again could not repeat the call.
  [[nodiscard]] std::optional<Communicator> split(std::optional<std::uint32_t> color, std::int32_t key = 0);

  // Fails every pending and later operation on this rank with `closed` and this reason. Ranks that then wait for this one
  // fail with `worker_lost`, and hear the reason.
  void abort(const std::string& reason);

  // The error after which the communicator is over, without a call: an operation's, or what a heartbeat found in between.
  // Any thread's; never waits.
  [[nodiscard]] std::optional<Error> failure() const;

  // Whether the ranks' protocol has this reduction of tensors of this type (docs/collectives.md).
  [[nodiscard]] bool can_reduce(ReduceOp op, DType dtype) const;
  // Whether reduce, reduce_scatter and all_gather travel as such; else they are made of other operations.
  [[nodiscard]] bool has_own_collectives() const;

  [[nodiscard]] Statistics statistics() const;
  [[nodiscard]] std::string placement() const;  // one line: which aggregators, and what to expect of them

 private:
  friend class collective::Connector;
  struct Impl;
  class Call;
  explicit Communicator(std::shared_ptr<Impl> impl);
  [[nodiscard]] Impl& impl() const;  // throws if moved from
  std::shared_ptr<Impl> impl_;
};

}  // namespace netsum
