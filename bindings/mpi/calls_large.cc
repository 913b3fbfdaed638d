// MPI 4's calls with counts of more than an int.
#include <mpi.h>

#include "collectives.h"

using namespace netsum::mpi;

extern "C" {

int MPI_Allreduce_c(const void* send, void* receive, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) {
  if (const auto code = all_reduce(send, receive, count, datatype, op, comm)) return *code;
  return PMPI_Allreduce_c(send, receive, count, datatype, op, comm);
}

int MPI_Reduce_c(const void* send, void* receive, MPI_Count count, MPI_Datatype datatype, MPI_Op op, int root,
                 MPI_Comm comm) {
  if (const auto code = reduce(send, receive, count, datatype, op, root, comm)) return *code;
  return PMPI_Reduce_c(send, receive, count, datatype, op, root, comm);
}

int MPI_Bcast_c(void* buffer, MPI_Count count, MPI_Datatype datatype, int root, MPI_Comm comm) {
  if (const auto code = broadcast(buffer, count, datatype, root, comm)) return *code;
  return PMPI_Bcast_c(buffer, count, datatype, root, comm);
}

int MPI_Reduce_scatter_c(const void* send, void* receive, const MPI_Count counts[], MPI_Datatype datatype, MPI_Op op,
                         MPI_Comm comm) {
  if (const auto code = reduce_scatter(send, receive, counts, datatype, op, comm)) return *code;
  return PMPI_Reduce_scatter_c(send, receive, counts, datatype, op, comm);
}

int MPI_Reduce_scatter_block_c(const void* send, void* receive, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                               MPI_Comm comm) {
  if (const auto code = reduce_scatter_block(send, receive, count, datatype, op, comm)) return *code;
  return PMPI_Reduce_scatter_block_c(send, receive, count, datatype, op, comm);
}

int MPI_Allgather_c(const void* send, MPI_Count send_count, MPI_Datatype send_type, void* receive, MPI_Count count,
                    MPI_Datatype datatype, MPI_Comm comm) {
  if (const auto code = all_gather(send, send_count, send_type, receive, count, datatype, comm)) return *code;
  return PMPI_Allgather_c(send, send_count, send_type, receive, count, datatype, comm);
}

int MPI_Iallreduce_c(const void* send, void* receive, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
                     MPI_Request* request) {
  all_reduce_nonblocking(count, datatype, comm);
  return PMPI_Iallreduce_c(send, receive, count, datatype, op, comm, request);
}

}  // extern "C"
