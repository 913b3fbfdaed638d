// The entry points of MPI's C binding that netsum stands in front of (the profiling interface, MPI 4.0, chapter 15).
#include "entry_points.h"
#include "process.h"

using netsum::mpi::Process;

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

NETSUM_COLLECTIVES(NETSUM_BLOCKING, int, )
NETSUM_BARRIER(NETSUM_BLOCKING)
NETSUM_COLLECTIVES(NETSUM_NONBLOCKING, int, )
NETSUM_BARRIER(NETSUM_NONBLOCKING)

}  // extern "C"
