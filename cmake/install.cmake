# Installs the library, the public headers, a CMake package (find_package(netsum), target netsum::netsum) and netsum.pc. The library is a set of
# archives, or with NETSUM_SHARED one libnetsum.so, whose users need nothing else.
include(CMakePackageConfigHelpers)
set(NETSUM_SOVERSION 1) # of libnetsum.so: raised by every change that programs compiled before would not survive

# The public target: the façade, with what it is made of.
add_library(netsum_api INTERFACE)
add_library(netsum::netsum ALIAS netsum_api)
set_target_properties(netsum_api PROPERTIES EXPORT_NAME netsum)
target_compile_features(netsum_api INTERFACE cxx_std_20)
target_include_directories(netsum_api INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
                                                $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
target_link_libraries(netsum_api INTERFACE netsum_c netsum_collective netsum_daemon)

get_property(libraries GLOBAL PROPERTY NETSUM_LIBRARIES)
if(NOT NETSUM_SANITIZE) # it is installed with NETSUM_SHARED; tests look at it everywhere
  file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/netsum_so.cc CONTENT "")
  add_library(netsum_so SHARED ${CMAKE_CURRENT_BINARY_DIR}/netsum_so.cc)
  target_link_libraries(netsum_so PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,netsum_collective,netsum_daemon>)
  target_sources(netsum_so PRIVATE $<TARGET_OBJECTS:netsum_c> $<TARGET_OBJECTS:netsum_binding_settings> $<TARGET_OBJECTS:netsum_base>) # base: all that public headers declare
  target_link_options(netsum_so PRIVATE -Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/exports.map -Wl,--no-undefined -Wl,--as-needed)
  target_compile_features(netsum_so INTERFACE cxx_std_20)
  target_include_directories(netsum_so INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  set_target_properties(netsum_so PROPERTIES OUTPUT_NAME netsum EXPORT_NAME netsum SOVERSION ${NETSUM_SOVERSION} VERSION ${NETSUM_SOVERSION}.${PROJECT_VERSION}
                                                 LINK_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/exports.map LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
endif()
if(NETSUM_SHARED)
  install(TARGETS netsum_so EXPORT netsum LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
else()
  install(TARGETS netsum_api ${libraries} EXPORT netsum ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/netsum)
endif()
# Of the libraries that netsum needs, those that every system has, and torch's, which a wheel finds loaded.
set(NETSUM_NOT_BESIDE "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|stdc\\+\\+|gcc_s)\\.so" "^lib(torch|c10)")
if(NETSUM_PORTABLE)
  if(NOT NETSUM_SHARED)
    message(FATAL_ERROR "NETSUM_PORTABLE needs NETSUM_SHARED: archives would need the development packages of all that they use")
  endif()
  # All but what is the system's own. RPATH, and not RUNPATH, since it also holds for what the libraries beside it need.
  set_target_properties(netsum netsum_so netsum_nccl PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  foreach(target IN ITEMS netsum netsum_so netsum_nccl)
    target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
  endforeach()
  install(TARGETS netsum netsum_so netsum_nccl RUNTIME_DEPENDENCY_SET beside LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(RUNTIME_DEPENDENCY_SET beside PRE_EXCLUDE_REGEXES ${NETSUM_NOT_BESIDE} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(NETSUM_TORCH AND NOT NETSUM_SANITIZE)
  # The folder `netsum` of a wheel (setup.py).
  set(wheel COMPONENT wheel EXCLUDE_FROM_ALL)
  install(TARGETS netsum netsum_torch RUNTIME_DEPENDENCY_SET wheel RUNTIME DESTINATION netsum/bin ${wheel} LIBRARY DESTINATION netsum/torch ${wheel})
  install(RUNTIME_DEPENDENCY_SET wheel PRE_EXCLUDE_REGEXES ${NETSUM_NOT_BESIDE} LIBRARY DESTINATION netsum/lib ${wheel})
  install(DIRECTORY bindings/torch/python/netsum bindings/torch/wheel/netsum DESTINATION . ${wheel} FILES_MATCHING PATTERN "*.py")
endif()
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
file(RELATIVE_PATH NETSUM_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
set(NETSUM_PC_LIBDIR ${CMAKE_INSTALL_LIBDIR}/netsum)
set(NETSUM_PC_REQUIRES "libhwy libssl libcrypto")
set(NETSUM_PC_LIBS "-Wl,--start-group${NETSUM_PC_LIBRARIES} -Wl,--end-group -lhighwayhash -lresolv -pthread")
if(NETSUM_SHARED)
  set(NETSUM_PC_LIBDIR ${CMAKE_INSTALL_LIBDIR})
  set(NETSUM_PC_REQUIRES "")
  set(NETSUM_PC_LIBS -lnetsum)
endif()
configure_file(cmake/netsum.pc.in ${CMAKE_CURRENT_BINARY_DIR}/netsum.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/netsum.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
