! Fortran's first binding: mpif.h's names and constants. mpi_calls.py runs it with libnetsum-mpi.so preloaded.
program by_include
  implicit none
  include 'mpif.h'
  integer :: rank, ranks, code, i
  integer :: numbers(5), total(5), parts(4), counts(64)
  double precision :: values(3)
  integer :: requests(4), statuses(MPI_STATUS_SIZE, 2), barrier
  logical :: all_true, own, done

  call MPI_Init(code)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, code)
  numbers = rank + 1
  call MPI_Allreduce(numbers, total, 5, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, code)
  call check(all(total == ranks * (ranks + 1) / 2), 'MPI_Allreduce')
  call MPI_Allreduce(MPI_IN_PLACE, numbers, 5, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, code)
  call check(all(numbers == total), 'MPI_Allreduce in place')
  values = rank
  call MPI_Allreduce(MPI_IN_PLACE, values, 3, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, code)
  call check(all(values == ranks * (ranks - 1) / 2), 'MPI_Allreduce of MPI_DOUBLE_PRECISION')
  own = rank /= 1
  call MPI_Allreduce(own, all_true, 1, MPI_LOGICAL, MPI_LAND, MPI_COMM_WORLD, code)
  call check(.not. all_true, 'MPI_LAND')
  numbers = rank
  call MPI_Bcast(numbers, 5, MPI_INTEGER, 1, MPI_COMM_WORLD, code)
  call check(all(numbers == 1), 'MPI_Bcast')
  numbers = rank
  if (rank == 0) then
    call MPI_Reduce(MPI_IN_PLACE, numbers, 5, MPI_INTEGER, MPI_SUM, 0, MPI_COMM_WORLD, code)
    call check(all(numbers == ranks * (ranks - 1) / 2), 'MPI_Reduce in place')
  else
    call MPI_Reduce(numbers, total, 5, MPI_INTEGER, MPI_SUM, 0, MPI_COMM_WORLD, code)
  end if
  counts = 0
  counts(1) = 2
  counts(2) = 3
  numbers = (/ (i, i = 1, 5) /)
  call MPI_Reduce_scatter(numbers, total, counts, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, code)
  if (rank == 1) call check(total(1) == 3 * ranks .and. total(3) == 5 * ranks, 'MPI_Reduce_scatter')
  call MPI_Barrier(MPI_COMM_WORLD, code)
  parts = rank
  do i = 1, 4
    call MPI_Iallreduce(MPI_IN_PLACE, parts(i), 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, requests(i), code)
  end do
  call MPI_Ibarrier(MPI_COMM_WORLD, barrier, code)
  call MPI_Wait(requests(4), MPI_STATUS_IGNORE, code)
  call MPI_Waitall(2, requests(2), statuses, code)
  done = .false.
  do while (.not. done)
    call MPI_Test(requests(1), done, MPI_STATUS_IGNORE, code)
  end do
  call check(all(parts == ranks * (ranks - 1) / 2), 'MPI_Iallreduce')
  call MPI_Wait(barrier, MPI_STATUS_IGNORE, code)
  call MPI_Finalize(code)

contains
  subroutine check(right, what)
    logical, intent(in) :: right
    character(*), intent(in) :: what
    if (right) return
    print *, 'wrong: ', what
    call MPI_Abort(MPI_COMM_WORLD, 1, code)
  end subroutine
end program
