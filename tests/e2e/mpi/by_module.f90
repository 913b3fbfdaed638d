! Fortran's newest binding: handles have types, and no call need ask for its error code. mpi_calls.py runs it as by_include.
program by_module
  use mpi_f08
  implicit none
  integer :: rank, ranks, provided
  integer :: numbers(5), total(5)
  real :: values(3)
  type(MPI_Comm) :: copy

  call MPI_Init_thread(MPI_THREAD_FUNNELED, provided)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  numbers = rank + 1
  call MPI_Allreduce(numbers, total, 5, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD)
  call check(all(total == ranks * (ranks + 1) / 2), 'MPI_Allreduce')
  call MPI_Allreduce(MPI_IN_PLACE, numbers, 5, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD)
  call check(all(numbers == total), 'MPI_Allreduce in place')
  call MPI_Comm_dup(MPI_COMM_WORLD, copy)
  values = rank
  call MPI_Allreduce(MPI_IN_PLACE, values, 3, MPI_REAL, MPI_SUM, copy)
  call check(all(values == ranks * (ranks - 1) / 2), 'MPI_Allreduce of MPI_REAL')
  numbers = rank
  call MPI_Bcast(numbers, 5, MPI_INTEGER, 1, copy)
  call check(all(numbers == 1), 'MPI_Bcast')
  call MPI_Comm_free(copy)
  call MPI_Barrier(MPI_COMM_WORLD)
  call MPI_Finalize()

contains
  subroutine check(right, what)
    logical, intent(in) :: right
    character(*), intent(in) :: what
    if (right) return
    print *, 'wrong: ', what
    call MPI_Abort(MPI_COMM_WORLD, 1)
  end subroutine
end program
