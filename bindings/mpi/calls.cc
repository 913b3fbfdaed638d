// The entry points of MPI's C binding that netsum stands in front of (the profiling interface, MPI 4.0, chapter 15).
#include <mpi.h>

#include "collectives.h"
#include "process.h"

using namespace netsum::mpi;

extern "C" {

int MPI_Init(int* argc, char*** argv) {
  Process::check_mpi();
  const int code = PMPI_Init(argc, argv);
  return code == MPI_SUCCESS ? Process::get().begin() : code;
}

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  Process::check_mpi();
  const int code = PMPI_Init_thread(argc, argv, required, provided);
  return code == MPI_SUCCESS ? Process::get().begin() : code;
}

int MPI_Finalize() {
  Process::get().end();
  return PMPI_Finalize();
}

int MPI_Allreduce(const void* send, void* receive, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) {
  if (const auto code = all_reduce(send, receive, count, datatype, op, comm)) return *code;
  return PMPI_Allreduce(send, receive, count, datatype, op, comm);
}

int MPI_Reduce(const void* send, void* receive, int count, MPI_Datatype datatype, MPI_Op op, int root, MPI_Comm comm) {
  if (const auto code = reduce(send, receive, count, datatype, op, root, comm)) return *code;
  return PMPI_Reduce(send, receive, count, datatype, op, root, comm);
}

int MPI_Bcast(void* buffer, int count, MPI_Datatype datatype, int root, MPI_Comm comm) {
  if (const auto code = broadcast(buffer, count, datatype, root, comm)) return *code;
  return PMPI_Bcast(buffer, count, datatype, root, comm);
}

int MPI_Barrier(MPI_Comm comm) {
  if (const auto code = barrier(comm)) return *code;
  return PMPI_Barrier(comm);
}

int MPI_Reduce_scatter(const void* send, void* receive, const int counts[], MPI_Datatype datatype, MPI_Op op,
                       MPI_Comm comm) {
  if (const auto code = reduce_scatter(send, receive, counts, datatype, op, comm)) return *code;
  return PMPI_Reduce_scatter(send, receive, counts, datatype, op, comm);
}

int MPI_Reduce_scatter_block(const void* send, void* receive, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) {
  if (const auto code = reduce_scatter_block(send, receive, count, datatype, op, comm)) return *code;
  return PMPI_Reduce_scatter_block(send, receive, count, datatype, op, comm);
}

int MPI_Allgather(const void* send, int send_count, MPI_Datatype send_type, void* receive, int count, MPI_Datatype datatype,
                  MPI_Comm comm) {
  if (const auto code = all_gather(send, send_count, send_type, receive, count, datatype, comm)) return *code;
  return PMPI_Allgather(send, send_count, send_type, receive, count, datatype, comm);
}

int MPI_Iallreduce(const void* send, void* receive, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
                   MPI_Request* request) {
  all_reduce_nonblocking(count, datatype, comm);
  return PMPI_Iallreduce(send, receive, count, datatype, op, comm, request);
}

}  // extern "C"
