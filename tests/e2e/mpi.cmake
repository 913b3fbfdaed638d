# libnetsum-mpi.so, in front of each MPI that is installed.
if(NETSUM_MPIS)
  add_library(fake_cuda MODULE mpi/fake_cuda.cc)
  target_link_libraries(fake_cuda PRIVATE netsum_options)
  set_target_properties(fake_cuda PROPERTIES PREFIX "" OUTPUT_NAME libcuda SUFFIX .so.1 LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/mpi)
  target_link_options(fake_cuda PRIVATE -Wl,-soname,libcuda.so.1)
endif()
foreach(mpi IN LISTS NETSUM_MPIS)
  set(programs ${CMAKE_BINARY_DIR}/tests/mpi/${mpi})
  foreach(program IN ITEMS operations requests)
    add_executable(mpi_${program}_${mpi} mpi/${program}.cc)
    netsum_use_mpi(mpi_${program}_${mpi} ${mpi})
    target_link_libraries(mpi_${program}_${mpi} PRIVATE netsum_options)
    set_target_properties(mpi_${program}_${mpi} PROPERTIES OUTPUT_NAME mpi_${program} RUNTIME_OUTPUT_DIRECTORY ${programs})
  endforeach()
  foreach(program IN ITEMS by_include by_module)
    add_custom_command(OUTPUT ${programs}/mpi_${program} DEPENDS mpi/${program}.f90
                       COMMAND mpifort.${mpi} -fallow-argument-mismatch -J${programs} ${CMAKE_CURRENT_SOURCE_DIR}/mpi/${program}.f90 -o ${programs}/mpi_${program})
  endforeach()
  add_dependencies(mpi_requests_${mpi} fake_cuda)
  target_compile_definitions(mpi_requests_${mpi} PRIVATE FAKE_CUDA="$<TARGET_FILE:fake_cuda>")
  add_custom_target(mpi_fortran_${mpi} ALL DEPENDS ${programs}/mpi_by_include ${programs}/mpi_by_module)
  add_dependencies(mpi_fortran_${mpi} mpi_operations_${mpi}) # makes the folder
  add_test(NAME mpi_calls_${mpi} COMMAND /usr/bin/python3 ${CMAKE_CURRENT_SOURCE_DIR}/mpi_calls.py $<TARGET_FILE:netsum> ${mpi}
                                         $<TARGET_FILE:netsum_mpi_${mpi}> ${programs})
  set_tests_properties(mpi_calls_${mpi} PROPERTIES LABELS "e2e;mpi" TIMEOUT 300 RUN_SERIAL TRUE)
endforeach()
# Applications of Debian's: ctest -C applications, by scripts/test --mpi.
if(openmpi IN_LIST NETSUM_MPIS)
  add_test(NAME mpi_applications CONFIGURATIONS applications
           COMMAND /usr/bin/python3 ${CMAKE_CURRENT_SOURCE_DIR}/mpi/applications.py $<TARGET_FILE:netsum> $<TARGET_FILE:netsum_mpi_openmpi>)
  set_tests_properties(mpi_applications PROPERTIES LABELS applications TIMEOUT 900)
endif()
