# The PyTorch backend, under the interpreter that it was built for. Each rank is a process; each case has its own time limit.
if(NETSUM_TORCH)
  foreach(test IN ITEMS torch_modes torch_operations torch_training torch_parallel torch_groups torch_failures demo)
    add_test(NAME ${test} COMMAND ${CMAKE_COMMAND} -E env PYTHONPATH=${CMAKE_BINARY_DIR}/python NETSUM_BINARY=$<TARGET_FILE:netsum>
                                  ${NETSUM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/${test}.py)
    set_tests_properties(${test} PROPERTIES LABELS "e2e;torch;patient" TIMEOUT 300)
  endforeach()
endif()
