# Installs the libraries, the public headers, a CMake package (find_package(netsum), target netsum::netsum) and netsum.pc.
include(CMakePackageConfigHelpers)

# The public target: the façade, with what it is made of.
add_library(netsum_api INTERFACE)
add_library(netsum::netsum ALIAS netsum_api)
set_target_properties(netsum_api PROPERTIES EXPORT_NAME netsum)
target_compile_features(netsum_api INTERFACE cxx_std_20)
target_include_directories(netsum_api INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
                                                $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
target_link_libraries(netsum_api INTERFACE netsum_collective netsum_daemon)

get_property(libraries GLOBAL PROPERTY NETSUM_LIBRARIES)
install(TARGETS netsum_api ${libraries} EXPORT netsum ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/netsum)
install(DIRECTORY include/netsum DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT netsum NAMESPACE netsum:: FILE netsum-targets.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/netsum)
configure_package_config_file(cmake/netsum-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/netsum-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/netsum)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/netsum-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/netsum-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/netsum-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/netsum)

# Static archives in an order that a one-pass linker takes: users first.
set(NETSUM_PC_LIBRARIES "")
list(REVERSE libraries)
foreach(library IN LISTS libraries)
  string(APPEND NETSUM_PC_LIBRARIES " -l${library}")
endforeach()
set(NETSUM_PC_VERBS "")
if(NETSUM_VERBS)
  set(NETSUM_PC_VERBS " libibverbs")
endif()
set(NETSUM_PC_XDP "")
if(NETSUM_XDP)
  set(NETSUM_PC_XDP " libbpf libxdp")
endif()
set(NETSUM_PC_BMV2 "")
if(NETSUM_BMV2)
  set(NETSUM_PC_BMV2 " thrift")
endif()
file(RELATIVE_PATH NETSUM_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/netsum.pc.in ${CMAKE_CURRENT_BINARY_DIR}/netsum.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/netsum.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
