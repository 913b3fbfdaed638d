# The PyTorch backend, under the interpreter that it was built for. Each rank is a process; each case has its own time limit.
if(NETSUM_TORCH)
  # A device for torch without hardware: what stages tensors of CUDA stages tensors of this.
  add_library(fake_device MODULE fake_device.cc)
  target_link_libraries(fake_device PRIVATE netsum_torch_api netsum_options)
  get_target_property(extension_suffix netsum_torch_api NETSUM_EXTENSION_SUFFIX)
  set_target_properties(fake_device PROPERTIES PREFIX "" SUFFIX ${extension_suffix} LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test_python)
  foreach(test IN ITEMS torch_modes torch_operations torch_layouts torch_training torch_parallel torch_groups torch_failures torch_devices demo)
    add_test(NAME ${test} COMMAND ${CMAKE_COMMAND} -E env PYTHONPATH=${CMAKE_BINARY_DIR}/python:${CMAKE_BINARY_DIR}/test_python NETSUM_BINARY=$<TARGET_FILE:netsum>
                                  ${NETSUM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/${test}.py)
    set_tests_properties(${test} PROPERTIES LABELS "e2e;torch;patient" TIMEOUT 600)
  endforeach()
  # torchcomms' backend: skipped where it is not built, or that Python has no torchcomms.
  add_test(NAME torch_comms COMMAND ${CMAKE_COMMAND} -E env NETSUM_BINARY=$<TARGET_FILE:netsum> --modify PYTHONPATH=path_list_prepend:${CMAKE_BINARY_DIR}/python
                                    --modify PYTHONPATH=path_list_prepend:${CMAKE_BINARY_DIR}/test_python ${NETSUM_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/torch_comms.py)
  set_tests_properties(torch_comms PROPERTIES LABELS "e2e;torch;patient" TIMEOUT 300 SKIP_RETURN_CODE 77)
endif()
