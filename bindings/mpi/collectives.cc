#include "collectives.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <variant>

#include "datatypes.h"
#include "device_memory.h"
#include "job.h"
#include "netsum/error.h"
#include "process.h"
#include "requests.h"
#include "run.h"
#include "stream/operation.h"

namespace netsum::mpi {
namespace {

std::uint64_t bytes_of_message(MPI_Count count, MPI_Datatype datatype) {
  const auto elements = static_cast<std::uint64_t>(count);
  if (const auto numbers = numbers_of(datatype)) return elements * numbers->element_bytes();
  int bytes = 0;
  if (PMPI_Type_size(datatype, &bytes) != MPI_SUCCESS || bytes < 0) return 0;
  return elements * static_cast<std::uint64_t>(bytes);
}

// Whether netsum's sum of so many float32 numbers is as exact as one by MPI, which rounds after each of n - 1 additions
// (docs/numerics.md).
bool is_as_exact(const Settings& settings, std::uint64_t numbers) {
  const Protocol& protocol = settings.common.options.protocol;
  if (std::holds_alternative<NetReduce>(protocol)) return true;
  const auto* const switchml = std::get_if<SwitchMl>(&protocol);
  return switchml != nullptr && switchml->wire == WireFormat::native && numbers <= stream::most_plain_floats;
}

bool takes_floats(const Settings& settings, std::uint64_t numbers) {
  return settings.float32 == Float32::all || (settings.float32 == Float32::as_exact && is_as_exact(settings, numbers));
}

// One call: where it goes, and what becomes of it there.
class Call {
 public:
  // `buffers`: the program's, any addresses.
  Call(Collective collective, MPI_Comm comm, How how, std::initializer_list<const void*> buffers)
      : collective_(collective), how_(how), job_(Process::get().job_of(comm)) {
    if (job_ && !job_->has_decided() && std::any_of(buffers.begin(), buffers.end(), &is_on_device)) job_->saw_device();
  }

  [[nodiscard]] bool is_possible() const { return job_ != nullptr; }
  [[nodiscard]] bool has_rank(int rank) const { return rank >= 0 && rank < ranks(); }
  [[nodiscard]] int rank() const { return job_->rank(); }
  [[nodiscard]] int ranks() const { return job_->ranks(); }

  // `offered`: what the call alone says; `suits`: what the job says, once the ranks are at the switch. None: MPI. `body`
  // makes a Run; one in the background has a copy of it, as long as its request is there.
  template <class Suits, class Body>
  std::optional<int> carry_out(std::uint64_t bytes, Path offered, const Suits& suits, const Body& body) {
    Process& process = Process::get();
    try {
      const Path path = choose(bytes, offered, suits);
      // A persistent call that takes the switch counts whenever it starts.
      const bool counts = path != Path::the_switch || how_.form != Form::persistent;
      if (counts) process.counts().add(collective_, how_.form, path, bytes);
      if (path != Path::the_switch) return std::nullopt;
      if (how_.form == Form::blocking) {
        Run run(*job_);
        body(run);
      } else {
        *how_.request = process.requests().add(job_->shared_from_this(), collective_, how_.form, bytes, body);
      }
      return MPI_SUCCESS;
    } catch (const Error& error) {
      // Nothing has happened: MPI says what is wrong with the arguments, as the communicator's error handler wants it.
      if (error.code() == ErrorCode::bad_argument) return std::nullopt;
      return job_->give_up(name_of(collective_, how_.form), error);
    } catch (const std::exception& error) {
      return job_->give_up(name_of(collective_, how_.form), Error(ErrorCode::internal, error.what()));
    }
  }

 private:
  template <class Suits>
  Path choose(std::uint64_t bytes, Path offered, const Suits& suits) {
    if (job_->excluded()) return *job_->excluded();
    const Path path = bytes < Process::get().least_bytes(how_.form) ? Path::too_short : offered;
    if (path == Path::the_switch) job_->count(bytes);
    // A non-blocking call may not wait for other ranks, as a join does: the next other call joins, whichever that is.
    if (how_.form != Form::nonblocking && job_->is_due() && !job_->join()) return Path::not_joined;
    if (path != Path::the_switch) return path;
    return job_->has_joined() ? suits(job_->at_switch()) : Path::not_yet;
  }

  const Collective collective_;
  const How how_;
  Job* const job_;
};

Path always(const Communicator&) {
  return Path::the_switch;
}

bool is_in_place(const void* buffer) {
  return buffer == MPI_IN_PLACE;
}

// What is reduced: `count` numbers of each rank, those of all parts together.
class Operands {
 public:
  Operands(MPI_Count count, MPI_Datatype datatype, MPI_Op op) : bytes_(bytes_of_message(count, datatype)) {
    const auto numbers = numbers_of(datatype);
    if (!numbers) {
      offered_ = Path::datatype;
      return;
    }
    numbers_ = *numbers;
    count_ = static_cast<std::uint64_t>(count) * numbers->of_element();
    const auto reduction = reduction_of(*numbers, op);
    if (const Path* const why_not = std::get_if<Path>(&reduction)) {
      offered_ = *why_not;
      return;
    }
    reduction_ = std::get<Reduction>(reduction);
    if (count_ == 0) {
      offered_ = Path::too_short;
    } else if (sums_float32() && !takes_floats(Process::get().settings(), count_)) {
      offered_ = Path::inexact;
    }
  }

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint32_t element_bytes() const { return static_cast<std::uint32_t>(numbers_.element_bytes()); }
  [[nodiscard]] ReduceOp op() const { return reduction_.op; }
  [[nodiscard]] Path offered() const { return offered_; }

  [[nodiscard]] Path suits(const Communicator& communicator) const {
    if (!communicator.can_reduce(reduction_.op, reduction_.dtype)) return Path::pair;
    // A chip adds even few floats as block fixed point.
    const bool as_floats = !std::holds_alternative<SwitchMl>(Process::get().settings().common.options.protocol) ||
                           communicator.can_reduce(ReduceOp::sum, DType::float64);
    const bool any_will_do = Process::get().settings().float32 == Float32::all;
    return sums_float32() && !as_floats && !any_will_do ? Path::inexact : Path::the_switch;
  }

  // `parts` of so many equal ones.
  [[nodiscard]] TensorView view(void* data, std::uint64_t parts = 1) const {
    return {data, count_ / parts, reduction_.dtype};
  }

  // Whether netsum can read, or write, the numbers where the program has them. Another rank's may be elsewhere.
  [[nodiscard]] bool fits(const void* buffer) const {
    return !is_prepared() && reinterpret_cast<std::uintptr_t>(buffer) % numbers_.width == 0 && !is_on_device(buffer);
  }
  [[nodiscard]] bool is_prepared() const { return reduction_.preparation != Preparation::none; }
  // In memory of its own: prepared, and made readable again. `more`: bytes behind it, for the caller.
  [[nodiscard]] std::byte* copied(Run& run, const void* from, std::size_t more = 0) const {
    std::byte* const data = run.scratch(bytes_ + more);
    copy(data, from, bytes_);
    prepare(reduction_.preparation, numbers_.width, data, count_);
    return data;
  }
  // `offset` and `elements`: of MPI's elements.
  void take(void* to, std::byte* data, std::uint64_t offset, std::uint64_t elements) const {
    std::byte* const part = data + offset * element_bytes();
    restore(reduction_.preparation, numbers_.width, part, elements * numbers_.of_element());
    copy(to, part, elements * element_bytes());
  }

 private:
  [[nodiscard]] bool sums_float32() const { return reduction_.dtype == DType::float32 && reduction_.op == ReduceOp::sum; }

  std::uint64_t bytes_ = 0, count_ = 0;
  Numbers numbers_;
  Reduction reduction_;
  Path offered_ = Path::the_switch;
};

// Calls what(address, elements, datatype) for PMPI_Pack or PMPI_Unpack. MPICH's refuse MPI_BOTTOM, as it is a null pointer:
// there, the same memory is said from its own beginning on. What a rank's buffer is called is nothing that the others see.
template <class What>
void at_memory(const void* buffer, int elements, MPI_Datatype datatype, const What& what) {
  if (buffer != MPI_BOTTOM || elements == 0) return what(const_cast<void*>(buffer), elements, datatype);
  MPI_Aint lower = 0, extent = 0;
  PMPI_Type_get_true_extent(datatype, &lower, &extent);
  const MPI_Aint back = -lower;
  MPI_Datatype relative = MPI_DATATYPE_NULL;
  PMPI_Type_create_hindexed(1, &elements, &back, datatype, &relative);
  PMPI_Type_commit(&relative);
  what(reinterpret_cast<void*>(lower), 1, relative);
  PMPI_Type_free(&relative);
}

// A datatype for as long as it is needed: the program may free its own once a call that does not block has returned.
std::shared_ptr<const MPI_Datatype> kept(MPI_Datatype datatype, Form form) {
  if (form == Form::blocking) return std::make_shared<const MPI_Datatype>(datatype);
  MPI_Datatype copy = MPI_DATATYPE_NULL;
  PMPI_Type_dup(datatype, &copy);
  return {new MPI_Datatype(copy), [](MPI_Datatype* own) {
            PMPI_Type_free(own);
            delete own;
          }};
}

// `count` elements of a datatype, which travel as bytes side by side.
class Message {
 public:
  Message(MPI_Count count, MPI_Datatype datatype, Form form)
      : count_(static_cast<int>(count)),
        bytes_(bytes_of_message(count, datatype)),
        datatype_(numbers_of(datatype) ? nullptr : kept(datatype, form)) {}

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  // Whether netsum can read, or write, them where the program has them.
  [[nodiscard]] bool fits(const void* buffer) const { return !datatype_ && !is_on_device(buffer); }

  void pack(const void* from, std::byte* to) const {
    if (!datatype_) return copy(to, from, bytes_);
    at_memory(from, count_, *datatype_, [&](const void* address, int count, MPI_Datatype datatype) {
      int position = 0;
      PMPI_Pack(address, count, datatype, to, static_cast<int>(bytes_), &position, MPI_COMM_SELF);
    });
  }
  void unpack(const std::byte* from, void* to) const {
    if (!datatype_) return copy(to, from, bytes_);
    at_memory(to, count_, *datatype_, [&](void* address, int count, MPI_Datatype datatype) {
      int position = 0;
      PMPI_Unpack(from, static_cast<int>(bytes_), &position, address, count, datatype, MPI_COMM_SELF);
    });
  }

 private:
  int count_;
  std::uint64_t bytes_;
  std::shared_ptr<const MPI_Datatype> datatype_;  // null: numbers side by side
};

// netsum reads it only.
void* readable(const void* buffer) {
  return const_cast<void*>(buffer);
}

// Each rank keeps `own` elements of the sum, from `before` on. No rank needs the others' parts, but that costs nothing here.
void reduce_whole(Run& run, const Operands& operands, const void* input, void* receive, std::uint64_t before,
                  std::uint64_t own) {
  std::byte* const data = operands.copied(run, input);
  run.all_reduce(operands.view(data), operands.view(data), operands.op());
  run.then([=] { operands.take(receive, data, before, own); });
}

}  // namespace

std::optional<int> all_reduce(const void* send, void* receive, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                              MPI_Comm comm, How how) {
  Call call(Collective::all_reduce, comm, how, {send, receive});
  if (!call.is_possible() || count < 0) return std::nullopt;
  const Operands operands(count, datatype, op);
  const auto suits = [&](const Communicator& communicator) { return operands.suits(communicator); };
  return call.carry_out(operands.bytes(), operands.offered(), suits, [=](Run& run) {
    const void* const input = is_in_place(send) ? receive : send;
    if (!operands.fits(input) || !operands.fits(receive)) {
      return reduce_whole(run, operands, input, receive, 0, static_cast<std::uint64_t>(count));
    }
    run.all_reduce(operands.view(readable(input)), operands.view(receive), operands.op());
  });
}

std::optional<int> reduce(const void* send, void* receive, MPI_Count count, MPI_Datatype datatype, MPI_Op op, int root,
                          MPI_Comm comm, How how) {
  Call call(Collective::reduce, comm, how, {send, receive});
  if (!call.is_possible() || !call.has_rank(root) || count < 0) return std::nullopt;
  const Operands operands(count, datatype, op);
  const auto suits = [&](const Communicator& communicator) { return operands.suits(communicator); };
  return call.carry_out(operands.bytes(), operands.offered(), suits, [=](Run& run) {
    const bool takes = run.job().rank() == root;
    const void* const input = takes && is_in_place(send) ? receive : send;
    const bool direct = operands.fits(takes ? receive : input);
    std::byte* const data =
        direct ? static_cast<std::byte*>(takes ? receive : readable(input)) : operands.copied(run, input);
    if (direct && takes) copy(receive, input, operands.bytes());
    run.reduce(operands.view(data), operands.op(), static_cast<std::uint32_t>(root));
    if (direct || !takes) return;
    run.then([=] { operands.take(receive, data, 0, static_cast<std::uint64_t>(count)); });
  });
}

std::optional<int> reduce_scatter_block(const void* send, void* receive, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                                        MPI_Comm comm, How how) {
  Call call(Collective::reduce_scatter_block, comm, how, {send, receive});
  if (!call.is_possible() || count < 0) return std::nullopt;
  const Operands operands(count * call.ranks(), datatype, op);
  const auto suits = [&](const Communicator& communicator) { return operands.suits(communicator); };
  return call.carry_out(operands.bytes(), operands.offered(), suits, [=](Run& run) {
    const auto part = static_cast<std::uint64_t>(count), ranks = static_cast<std::uint64_t>(run.job().ranks());
    const void* const input = is_in_place(send) ? receive : send;
    if (!run.at_switch().has_own_collectives() || operands.is_prepared()) {
      return reduce_whole(run, operands, input, receive, part * static_cast<std::uint64_t>(run.job().rank()), part);
    }
    // In place the output is the first part of the input, not the rank's own.
    if (!is_in_place(send) && operands.fits(input) && operands.fits(receive)) {
      run.reduce_scatter(operands.view(readable(input)), operands.view(receive, ranks), operands.op());
      return;
    }
    const std::size_t own = operands.bytes() / ranks;
    std::byte* const in = operands.copied(run, input, own);
    std::byte* const out = in + operands.bytes();
    run.reduce_scatter(operands.view(in), operands.view(out, ranks), operands.op());
    run.then([=] { copy(receive, out, own); });
  });
}

template <class Count>
std::optional<int> reduce_scatter(const void* send, void* receive, const Count* counts, MPI_Datatype datatype, MPI_Op op,
                                  MPI_Comm comm, How how) {
  Call call(Collective::reduce_scatter, comm, how, {send, receive});
  if (!call.is_possible()) return std::nullopt;
  const std::span all(counts, static_cast<std::size_t>(call.ranks()));
  if (std::any_of(all.begin(), all.end(), [](Count count) { return count < 0; })) return std::nullopt;
  const Operands operands(std::accumulate(all.begin(), all.end(), MPI_Count{0}), datatype, op);
  const auto suits = [&](const Communicator& communicator) { return operands.suits(communicator); };
  const auto before = static_cast<std::uint64_t>(std::accumulate(all.begin(), all.begin() + call.rank(), MPI_Count{0}));
  const auto own = static_cast<std::uint64_t>(all[static_cast<std::size_t>(call.rank())]);
  return call.carry_out(operands.bytes(), operands.offered(), suits, [=](Run& run) {
    reduce_whole(run, operands, is_in_place(send) ? receive : send, receive, before, own);
  });
}

template std::optional<int> reduce_scatter(const void*, void*, const int*, MPI_Datatype, MPI_Op, MPI_Comm, How);
template std::optional<int> reduce_scatter(const void*, void*, const MPI_Count*, MPI_Datatype, MPI_Op, MPI_Comm, How);

std::optional<int> barrier(MPI_Comm comm, How how) {
  Call call(Collective::barrier, comm, how, {});
  if (!call.is_possible()) return std::nullopt;
  return call.carry_out(0, Path::the_switch, always, [](Run& run) { run.barrier(); });
}

namespace {

// The ranks' datatypes may differ: only their signatures are the same, and so the length in bytes. What is not numbers side
// by side is packed.
Path can_move(std::uint64_t bytes) {
  if (bytes == 0) return Path::too_short;
  return bytes > INT_MAX || !Process::get().packs_bytes() ? Path::datatype : Path::the_switch;
}

}  // namespace

std::optional<int> broadcast(void* buffer, MPI_Count count, MPI_Datatype datatype, int root, MPI_Comm comm, How how) {
  Call call(Collective::broadcast, comm, how, {buffer});
  if (!call.is_possible() || !call.has_rank(root) || count < 0) return std::nullopt;
  const Message message(count, datatype, how.form);
  return call.carry_out(message.bytes(), can_move(message.bytes()), always, [=](Run& run) {
    const auto from = static_cast<std::uint32_t>(root);
    if (message.fits(buffer)) return run.broadcast({static_cast<std::byte*>(buffer), message.bytes()}, from);
    std::byte* const packed = run.scratch(message.bytes());
    const bool sends = run.job().rank() == root;
    if (sends) message.pack(buffer, packed);
    run.broadcast({packed, message.bytes()}, from);
    if (!sends) run.then([=] { message.unpack(packed, buffer); });
  });
}

std::optional<int> all_gather(const void* send, MPI_Count send_count, MPI_Datatype send_type, void* receive, MPI_Count count,
                              MPI_Datatype datatype, MPI_Comm comm, How how) {
  Call call(Collective::all_gather, comm, how, {send, receive});
  if (!call.is_possible() || count < 0 || send_count < 0) return std::nullopt;
  const Message all(count * call.ranks(), datatype, how.form);
  const bool in_place = is_in_place(send);
  const Message own = in_place ? Message(count, datatype, how.form) : Message(send_count, send_type, how.form);
  MPI_Aint lower = 0, extent = 0;
  if (in_place) PMPI_Type_get_extent(datatype, &lower, &extent);
  const void* const input = in_place ? static_cast<std::byte*>(receive) + extent * count * call.rank() : send;
  // One broadcast from each rank is no better than MPI's own.
  const auto suits = [](const Communicator& communicator) {
    return communicator.has_own_collectives() ? Path::the_switch : Path::not_offered;
  };
  return call.carry_out(all.bytes(), can_move(all.bytes()), suits, [=](Run& run) {
    const bool direct = all.fits(receive);
    std::byte* const mine = run.scratch(own.bytes() + (direct ? 0 : all.bytes()));
    std::byte* const whole = direct ? static_cast<std::byte*>(receive) : mine + own.bytes();
    own.pack(input, mine);
    run.all_gather({mine, own.bytes()}, {whole, all.bytes()});
    if (!direct) run.then([=] { all.unpack(whole, receive); });
  });
}

}  // namespace netsum::mpi
