! Fortran's newest binding: handles have types, and no call need ask for its error code. mpi_calls.py runs it as by_include.
program by_module
  use mpi_f08
  implicit none
  integer :: rank, ranks, provided
  integer :: numbers(5), total(5)
  real :: values(3)
  type(MPI_Comm) :: copy
  type(MPI_Request) :: requests(4), barrier
  integer, asynchronous :: parts(4)
  integer :: i
  logical :: done

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
  parts = rank
  do i = 1, 4
    call MPI_Iallreduce(MPI_IN_PLACE, parts(i), 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(i))
  end do
  call MPI_Ibarrier(MPI_COMM_WORLD, barrier)
  call MPI_Wait(requests(4), MPI_STATUS_IGNORE)
  call MPI_Waitall(2, requests(2:3), MPI_STATUSES_IGNORE)
  done = .false.
  do while (.not. done)
    call MPI_Test(requests(1), done, MPI_STATUS_IGNORE)
  end do
  call check(all(parts == ranks * (ranks - 1) / 2), 'MPI_Iallreduce')
  call MPI_Wait(barrier, MPI_STATUS_IGNORE)
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
