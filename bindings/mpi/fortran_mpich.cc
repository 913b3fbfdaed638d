// MPICH's Fortran bindings call MPI_, and so netsum, but for these of `use mpi_f08`, which call PMPI_. Handles are the same
// numbers in Fortran and in C.
#include <mpi.h>

namespace {

void set(MPI_Fint* into, int code) {
  if (into != nullptr) *into = code;  // the argument is optional
}

}  // namespace

extern "C" {

void mpi_init_f08_(MPI_Fint* code) {
  set(code, MPI_Init(nullptr, nullptr));
}
void mpi_init_thread_f08_(const MPI_Fint* required, MPI_Fint* provided, MPI_Fint* code) {
  set(code, MPI_Init_thread(nullptr, nullptr, *required, provided));
}
void mpi_finalize_f08_(MPI_Fint* code) {
  set(code, MPI_Finalize());
}
void mpi_barrier_f08_(const MPI_Fint* comm, MPI_Fint* code) {
  set(code, MPI_Barrier(*comm));
}

void mpi_ibarrier_f08_(const MPI_Fint* comm, MPI_Fint* request, MPI_Fint* code) {
  set(code, MPI_Ibarrier(*comm, request));
}
void mpi_barrier_init_f08_(const MPI_Fint* comm, const MPI_Fint* info, MPI_Fint* request, MPI_Fint* code) {
  set(code, MPI_Barrier_init(*comm, *info, request));
}

}  // extern "C"
