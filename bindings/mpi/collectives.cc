#include "collectives.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>
#include <exception>
#include <numeric>
#include <span>
#include <string>
#include <variant>

#include "datatypes.h"
#include "job.h"
#include "process.h"
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
  if (settings.common.protocol == "netreduce") return true;
  return settings.common.protocol == "switchml" && settings.common.wire == WireFormat::native &&
         numbers <= stream::most_plain_floats;
}

bool takes_floats(const Settings& settings, std::uint64_t numbers) {
  return settings.float32 == Float32::all || (settings.float32 == Float32::as_exact && is_as_exact(settings, numbers));
}

const CallOptions& while_waiting() {
  static const CallOptions call = [] {
    CallOptions options;
    options.while_waiting = [] { Process::get().progress(); };
    return options;
  }();
  return call;
}

// One call: where it goes, and what becomes of it there.
class Call {
 public:
  Call(Collective collective, MPI_Comm comm) : collective_(collective), comm_(comm), job_(Process::get().job_of(comm)) {}

  // All that calls have in common. `offered`: what the call alone says. None: MPI.
  template <class Body>
  std::optional<int> carry_out(std::uint64_t bytes, Path offered, const Body& body) {
    if (job_ == nullptr) return std::nullopt;
    Process& process = Process::get();
    try {
      const Path path = job_->excluded()                ? *job_->excluded()
                        : bytes < process.least_bytes() ? Path::too_short
                        : offered != Path::the_switch   ? offered
                        : job_->join(comm_)             ? Path::the_switch
                                                        : Path::not_joined;
      process.counts().add(collective_, path, bytes);
      if (path != Path::the_switch) return std::nullopt;
      body(*job_);
      return MPI_SUCCESS;
    } catch (const std::exception& error) {
      job_->give_up(error.what());
      return process.fail(comm_, std::string(collective_names[static_cast<std::size_t>(collective_)]) + ": " + error.what());
    }
  }

  [[nodiscard]] Job* job() const { return job_; }

 private:
  const Collective collective_;
  const MPI_Comm comm_;
  Job* const job_;
};

// The numbers of a reduction's operands.
struct Operands {
  Reduction reduction;
  Numbers numbers;
  std::uint64_t count = 0;  // of numbers

  [[nodiscard]] std::size_t bytes() const { return count * numbers.width; }
};

// `count`: elements that are reduced, of all parts.
Path look_at(MPI_Count count, MPI_Datatype datatype, MPI_Op op, Operands& operands) {
  const auto numbers = numbers_of(datatype);
  if (!numbers) return Path::datatype;
  operands.numbers = *numbers;
  operands.count = static_cast<std::uint64_t>(count) * numbers->of_element();
  if (operands.count == 0) return Path::too_short;
  const auto reduction = reduction_of(*numbers, op);
  if (const Path* const why_not = std::get_if<Path>(&reduction)) return *why_not;
  operands.reduction = std::get<Reduction>(reduction);
  if (operands.reduction.dtype == DType::float32 && operands.reduction.op == ReduceOp::sum &&
      !takes_floats(Process::get().settings(), operands.count)) {
    return Path::inexact;
  }
  return Path::the_switch;
}

// In place, of all ranks.
void reduce_at_switch(Job& job, std::byte* data, const Operands& operands) {
  const auto& [dtype, op, preparation] = operands.reduction;
  prepare(preparation, operands.numbers.width, data, operands.count);
  job.at_switch().all_reduce(TensorView{data, operands.count, dtype}, op, while_waiting());
  restore(preparation, operands.numbers.width, data, operands.count);
}

void copy(void* to, const void* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

bool is_in_place(const void* buffer) {
  return buffer == MPI_IN_PLACE;
}

bool is_aligned(const void* buffer, std::uint32_t width) {
  return reinterpret_cast<std::uintptr_t>(buffer) % width == 0;
}

}  // namespace

std::optional<int> all_reduce(const void* send, void* receive, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                              MPI_Comm comm) {
  if (count < 0) return std::nullopt;
  Operands operands;
  const Path offered = look_at(count, datatype, op, operands);
  return Call(Collective::all_reduce, comm).carry_out(bytes_of_message(count, datatype), offered, [&](Job& job) {
    const bool aligned = is_aligned(receive, operands.numbers.width);
    std::byte* const data = aligned ? static_cast<std::byte*>(receive) : job.scratch(operands.bytes());
    copy(data, is_in_place(send) ? receive : send, operands.bytes());
    reduce_at_switch(job, data, operands);
    copy(receive, data, operands.bytes());
  });
}

std::optional<int> reduce(const void* send, void* receive, MPI_Count count, MPI_Datatype datatype, MPI_Op op, int root,
                          MPI_Comm comm) {
  if (count < 0) return std::nullopt;
  Operands operands;
  const Path offered = look_at(count, datatype, op, operands);
  return Call(Collective::reduce, comm).carry_out(bytes_of_message(count, datatype), offered, [&](Job& job) {
    std::byte* const data = job.scratch(operands.bytes());
    copy(data, is_in_place(send) ? receive : send, operands.bytes());
    reduce_at_switch(job, data, operands);
    if (job.rank() == root) copy(receive, data, operands.bytes());
  });
}

std::optional<int> barrier(MPI_Comm comm) {
  return Call(Collective::barrier, comm).carry_out(0, Path::the_switch, [](Job& job) {
    job.at_switch().barrier(while_waiting());
  });
}

// The ranks' datatypes may differ: only their signatures are the same, and so the length in bytes.
std::optional<int> broadcast(void* buffer, MPI_Count count, MPI_Datatype datatype, int root, MPI_Comm comm) {
  if (count < 0) return std::nullopt;
  const std::uint64_t bytes = bytes_of_message(count, datatype);
  const Path offered = bytes == 0                                         ? Path::too_short
                       : bytes > INT_MAX || !Process::get().packs_bytes() ? Path::datatype
                                                                          : Path::the_switch;
  return Call(Collective::broadcast, comm).carry_out(bytes, offered, [&](Job& job) {
    const auto from = static_cast<std::uint32_t>(root);
    if (numbers_of(datatype)) {
      job.at_switch().broadcast(std::span(static_cast<std::byte*>(buffer), bytes), from, while_waiting());
      return;
    }
    std::byte* const packed = job.scratch(bytes);
    const auto elements = static_cast<int>(count), length = static_cast<int>(bytes);
    int position = 0;
    if (job.rank() == root) PMPI_Pack(buffer, elements, datatype, packed, length, &position, comm);
    job.at_switch().broadcast(std::span(packed, bytes), from, while_waiting());
    if (job.rank() != root) PMPI_Unpack(packed, length, &position, buffer, elements, datatype, comm);
  });
}

template <class Count>
std::optional<int> reduce_scatter(const void* send, void* receive, const Count* counts, MPI_Datatype datatype, MPI_Op op,
                                  MPI_Comm comm) {
  Call call(Collective::reduce_scatter, comm);
  if (call.job() == nullptr) return std::nullopt;
  const std::span all(counts, static_cast<std::size_t>(call.job()->ranks()));
  const auto total = std::accumulate(all.begin(), all.end(), MPI_Count{0});
  if (std::any_of(all.begin(), all.end(), [](Count count) { return count < 0; })) return std::nullopt;
  Operands operands;
  const Path offered = look_at(total, datatype, op, operands);
  return call.carry_out(bytes_of_message(total, datatype), offered, [&](Job& job) {
    std::byte* const data = job.scratch(operands.bytes());
    copy(data, is_in_place(send) ? receive : send, operands.bytes());
    reduce_at_switch(job, data, operands);
    const auto own = static_cast<std::size_t>(job.rank());
    const auto before = std::accumulate(all.begin(), all.begin() + job.rank(), std::size_t{0});
    const std::size_t width = operands.numbers.element_bytes();
    copy(receive, data + before * width, static_cast<std::size_t>(all[own]) * width);
  });
}

template std::optional<int> reduce_scatter(const void*, void*, const int*, MPI_Datatype, MPI_Op, MPI_Comm);
template std::optional<int> reduce_scatter(const void*, void*, const MPI_Count*, MPI_Datatype, MPI_Op, MPI_Comm);

std::optional<int> reduce_scatter_block(const void* send, void* receive, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                                        MPI_Comm comm) {
  Call call(Collective::reduce_scatter_block, comm);
  if (call.job() == nullptr || count < 0) return std::nullopt;
  const MPI_Count total = count * call.job()->ranks();
  Operands operands;
  const Path offered = look_at(total, datatype, op, operands);
  return call.carry_out(bytes_of_message(total, datatype), offered, [&](Job& job) {
    std::byte* const data = job.scratch(operands.bytes());
    copy(data, is_in_place(send) ? receive : send, operands.bytes());
    reduce_at_switch(job, data, operands);
    const std::size_t part = static_cast<std::size_t>(count) * operands.numbers.element_bytes();
    copy(receive, data + part * static_cast<std::size_t>(job.rank()), part);
  });
}

std::optional<int> all_gather(const void*, MPI_Count, MPI_Datatype, void*, MPI_Count count, MPI_Datatype datatype,
                              MPI_Comm comm) {
  Call call(Collective::all_gather, comm);
  if (call.job() == nullptr || count < 0) return std::nullopt;
  return call.carry_out(bytes_of_message(count * call.job()->ranks(), datatype), Path::not_offered, [](Job&) {});
}

void all_reduce_nonblocking(MPI_Count count, MPI_Datatype datatype, MPI_Comm comm) {
  if (count < 0) return;
  static_cast<void>(Call(Collective::all_reduce_nonblocking, comm)
                        .carry_out(bytes_of_message(count, datatype), Path::not_offered, [](Job&) {}));
}

}  // namespace netsum::mpi
