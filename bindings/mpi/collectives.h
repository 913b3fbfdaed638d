// Collective calls through the switch. Each decides by what all ranks have in common, and counts the call. None: it is
// MPI's, and nothing was done; else the call's MPI error code.
#pragma once

#include <mpi.h>

#include <optional>

#include "path.h"

namespace netsum::mpi {

struct How {
  Form form = Form::blocking;
  MPI_Request* request = nullptr;  // where the request goes, if the call has one
};

[[nodiscard]] std::optional<int> all_reduce(const void* send, void* receive, MPI_Count count, MPI_Datatype datatype,
                                            MPI_Op op, MPI_Comm comm, How how = {});
[[nodiscard]] std::optional<int> reduce(const void* send, void* receive, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                                        int root, MPI_Comm comm, How how = {});
[[nodiscard]] std::optional<int> broadcast(void* buffer, MPI_Count count, MPI_Datatype datatype, int root, MPI_Comm comm,
                                           How how = {});
[[nodiscard]] std::optional<int> barrier(MPI_Comm comm, How how = {});
// Count: int or MPI_Count.
template <class Count>
[[nodiscard]] std::optional<int> reduce_scatter(const void* send, void* receive, const Count* counts, MPI_Datatype datatype,
                                                MPI_Op op, MPI_Comm comm, How how = {});
[[nodiscard]] std::optional<int> reduce_scatter_block(const void* send, void* receive, MPI_Count count,
                                                      MPI_Datatype datatype, MPI_Op op, MPI_Comm comm, How how = {});
[[nodiscard]] std::optional<int> all_gather(const void* send, MPI_Count send_count, MPI_Datatype send_type, void* receive,
                                            MPI_Count count, MPI_Datatype datatype, MPI_Comm comm, How how = {});

}  // namespace netsum::mpi
