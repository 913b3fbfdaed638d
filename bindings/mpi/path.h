// The two ways of a collective call, and why a call does not take the switch.
#pragma once

#include <array>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <string>

namespace netsum::mpi {

enum class Collective : std::uint8_t {
  all_reduce,
  reduce,
  broadcast,
  barrier,
  reduce_scatter,
  reduce_scatter_block,
  all_gather
};
constexpr std::array<const char*, 7> collective_names = {
    "Allreduce", "Reduce", "Bcast", "Barrier", "Reduce_scatter", "Reduce_scatter_block", "Allgather"};

// Whether a call ends before it returns, or has a request; one that persists begins with MPI_Start.
enum class Form : std::uint8_t { blocking, nonblocking, persistent };
constexpr std::size_t forms = 3;

// MPI's: "MPI_Allreduce", "MPI_Iallreduce", "MPI_Allreduce_init".
[[nodiscard]] inline std::string name_of(Collective collective, Form form) {
  std::string name = collective_names[static_cast<std::size_t>(collective)];
  if (form == Form::nonblocking) name[0] = static_cast<char>(std::tolower(name[0]));
  return (form == Form::nonblocking ? "MPI_I" : "MPI_") + name + (form == Form::persistent ? "_init" : "");
}

// Each depends only on what all ranks of the call have in common.
enum class Path : std::uint8_t {
  the_switch,
  // MPI, because:
  off,             // NETSUM_MODE
  alone,           // one rank
  between_groups,  // an intercommunicator
  beyond_world,    // processes that are not in MPI_COMM_WORLD: started apart, or a session's
  too_many_ranks,  // for the protocol
  not_yet,         // NETSUM_MPI_JOIN_CALLS
  not_joined,      // the ranks did not come together at the switch
  too_short,       // NETSUM_MPI_MIN_BYTES
  datatype,        // one that is not summed
  operation,       // one that is not the switch's: a user's, MPI_MINLOC, ...
  pair,            // this operation on this type
  inexact,         // NETSUM_MPI_FLOAT32
  not_offered,     // the collective
};
constexpr std::size_t paths = 14;

constexpr std::array<const char*, paths> path_names = {
    "the switch",
    "NETSUM_MODE=off",
    "a communicator of one rank",
    "an intercommunicator",
    "processes outside MPI_COMM_WORLD",
    "more ranks than a job has",
    "the communicator had not joined a job yet (NETSUM_MPI_JOIN_CALLS)",
    "the switch could not be joined",
    "fewer bytes than NETSUM_MPI_MIN_BYTES",
    "a datatype that netsum does not reduce",
    "an operation that netsum does not have",
    "this operation on this datatype",
    "float32 sums that might be less exact than MPI's (NETSUM_MPI_FLOAT32)",
    "a collective that netsum does not have, or does no better than MPI",
};

}  // namespace netsum::mpi
