// The collective calls that netsum stands in front of, once for all their forms: MPI has each as a blocking, a non-blocking
// and a persistent call, with counts of type int and, since MPI 4, of type MPI_Count (..._c).
#pragma once

#include <mpi.h>

#include "collectives.h"

// ENTRY(name, name of the non-blocking call, suffix of both, netsum's function, (parameters), (arguments))
#define NETSUM_COLLECTIVES(ENTRY, count_t, c)                                                                               \
  ENTRY(Allreduce, Iallreduce, c, all_reduce,                                                                               \
        (const void* send, void* receive, count_t count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm),                  \
        (send, receive, count, datatype, op, comm))                                                                         \
  ENTRY(Reduce, Ireduce, c, reduce,                                                                                         \
        (const void* send, void* receive, count_t count, MPI_Datatype datatype, MPI_Op op, int root, MPI_Comm comm),        \
        (send, receive, count, datatype, op, root, comm))                                                                   \
  ENTRY(Bcast, Ibcast, c, broadcast, (void* buffer, count_t count, MPI_Datatype datatype, int root, MPI_Comm comm),         \
        (buffer, count, datatype, root, comm))                                                                              \
  ENTRY(Reduce_scatter, Ireduce_scatter, c, reduce_scatter,                                                                 \
        (const void* send, void* receive, const count_t counts[], MPI_Datatype datatype, MPI_Op op, MPI_Comm comm),         \
        (send, receive, counts, datatype, op, comm))                                                                        \
  ENTRY(Reduce_scatter_block, Ireduce_scatter_block, c, reduce_scatter_block,                                               \
        (const void* send, void* receive, count_t count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm),                  \
        (send, receive, count, datatype, op, comm))                                                                         \
  ENTRY(Allgather, Iallgather, c, all_gather,                                                                               \
        (const void* send, count_t send_count, MPI_Datatype send_type, void* receive, count_t count, MPI_Datatype datatype, \
         MPI_Comm comm),                                                                                                    \
        (send, send_count, send_type, receive, count, datatype, comm))
// Has no counts.
#define NETSUM_BARRIER(ENTRY) ENTRY(Barrier, Ibarrier, , barrier, (MPI_Comm comm), (comm))

#define NETSUM_LIST(...) __VA_ARGS__

#define NETSUM_BLOCKING(name, iname, c, function, parameters, arguments)              \
  int MPI_##name##c parameters {                                                      \
    if (const auto code = netsum::mpi::function(NETSUM_LIST arguments)) return *code; \
    return PMPI_##name##c arguments;                                                  \
  }
#define NETSUM_NONBLOCKING(name, iname, c, function, parameters, arguments)                \
  int MPI_##iname##c(NETSUM_LIST parameters, MPI_Request* request) {                       \
    const netsum::mpi::How how{netsum::mpi::Form::nonblocking, request};                   \
    if (const auto code = netsum::mpi::function(NETSUM_LIST arguments, how)) return *code; \
    return PMPI_##iname##c(NETSUM_LIST arguments, request);                                \
  }
#define NETSUM_PERSISTENT(name, iname, c, function, parameters, arguments)                 \
  int MPI_##name##_init##c(NETSUM_LIST parameters, MPI_Info info, MPI_Request* request) {  \
    const netsum::mpi::How how{netsum::mpi::Form::persistent, request};                    \
    if (const auto code = netsum::mpi::function(NETSUM_LIST arguments, how)) return *code; \
    return PMPI_##name##_init##c(NETSUM_LIST arguments, info, request);                    \
  }
