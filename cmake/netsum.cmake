# A folder of src/ is a library: netsum_library(NAME wire SOURCES ... DEPS base ...) makes netsum_wire, alias netsum::wire;
# TOGETHER: see netsum_compiled_together; with sanitizers all are compiled so, but those that are APART, since their files include
# themselves once for each vector extension. UNHURRIED: what mostly waits is not optimized where it is sanitized, since compiling it takes
# longer there than running it.
# netsum_test(NAME ... SOURCES ... DEPS ... LABELS ...) makes a GoogleTest program that CTest runs, of one file or of several compiled
# together, but for those ALONE, which define what a neighbour defines too. Labels: the folder's name, `threaded` if it starts threads
# (those run under ThreadSanitizer too), and `vectors` if it tests vector code.

add_library(netsum_options INTERFACE)
target_compile_features(netsum_options INTERFACE cxx_std_20)
target_compile_options(netsum_options INTERFACE -pthread) # everywhere, as some libraries demand it
target_compile_options(netsum_options INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wnon-virtual-dtor
                                                -Wold-style-cast -fno-omit-frame-pointer)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 warns of overlapping copies inside its own std::string (GCC bug 105651). A library with unique symbols cannot be unloaded.
  target_compile_options(netsum_options INTERFACE -Wno-restrict -fno-gnu-unique)
endif()
if(NETSUM_WERROR)
  target_compile_options(netsum_options INTERFACE -Werror)
endif()
# Highway's emulated vectors saturate where IEEE 754 gives infinity; its scalars do not.
target_compile_definitions(netsum_options INTERFACE HWY_BROKEN_EMU128=1)
if(NETSUM_CHECKED)
  target_compile_definitions(netsum_options INTERFACE NETSUM_CHECKED)
endif()
# What fuzzers call. Clang counts its edges, which lead them to new inputs; elsewhere counting would take a quarter of the compiler's time.
add_library(netsum_fuzzed INTERFACE)
if(NETSUM_SANITIZE STREQUAL "address")
  # Left out is what takes a fifth of the compiler's time and what the address sanitizer finds as well, where the pointer is used.
  target_compile_options(netsum_options INTERFACE -fsanitize=address,undefined -fno-sanitize=null,pointer-overflow,vptr
                                                  -fno-sanitize-recover=all)
  target_compile_options(netsum_fuzzed INTERFACE $<$<CXX_COMPILER_ID:Clang>:-fsanitize=fuzzer-no-link>)
  target_link_options(netsum_options INTERFACE -fsanitize=address,undefined)
elseif(NETSUM_SANITIZE STREQUAL "thread")
  target_compile_options(netsum_options INTERFACE -fsanitize=thread)
  target_link_options(netsum_options INTERFACE -fsanitize=thread)
elseif(NETSUM_SANITIZE)
  message(FATAL_ERROR "NETSUM_SANITIZE is address, thread or empty, not '${NETSUM_SANITIZE}'")
endif()

# What is released is hardened. Some compilers define _FORTIFY_SOURCE by themselves, to something else.
add_compile_options("$<$<CONFIG:Release,RelWithDebInfo>:-fstack-protector-strong;-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>")
add_link_options("$<$<CONFIG:Release,RelWithDebInfo>:-Wl,-z,relro,-z,now>")
# Its bytes do not depend on where it was built (tests/install/same_bytes.sh). The last of these that fits counts: in a build inside the
# tree debuggers find sources from the tree's top.
set(NETSUM_PATHLESS -ffile-prefix-map=${PROJECT_BINARY_DIR}=./build -ffile-prefix-map=${PROJECT_SOURCE_DIR}=.)
add_compile_options("$<$<CONFIG:Release,RelWithDebInfo>:${NETSUM_PATHLESS}>")
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NETSUM_SANITIZE)
  # A sanitizer's tables of globals and of source lines would need a million relocations at each start of a program.
  add_link_options($<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-no-pie>)
else()
  include(CheckPIESupported)
  check_pie_supported()
endif()

# netsum_precompiled(NAME FLAG HEADERS ... LINK ...): what nearly every file includes is parsed once, not once a file, and targets
# REUSE_FROM it. All flags must be the same: FLAG is -fPIC for libraries and -fPIE for programs, LINK brings definitions, and a folder
# with flags of its own has its own. Release builds do so for programs only, and find a missing #include in src/.
set(NETSUM_PRECOMPILED_STANDARD <algorithm> <array> <bit> <chrono> <cstdint> <cstring> <deque> <functional> <limits> <map> <memory>
                                <optional> <span> <stdexcept> <string> <string_view> <unordered_map> <utility> <variant> <vector>)
function(netsum_precompiled NAME FLAG)
  cmake_parse_arguments(ARG "" "" "HEADERS;LINK" ${ARGN})
  if(NOT TARGET ${NAME})
    set(empty ${CMAKE_CURRENT_BINARY_DIR}/${NAME}.cc)
    file(GENERATE OUTPUT ${empty} CONTENT "")
    add_library(${NAME} OBJECT ${empty})
    set_target_properties(${NAME} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    if(FLAG MATCHES -fPIC) # netsum_library's
      set_target_properties(${NAME} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
    endif()
    target_compile_options(${NAME} PRIVATE ${FLAG})
    target_link_libraries(${NAME} PRIVATE netsum_options ${ARG_LINK})
    target_precompile_headers(${NAME} PRIVATE ${NETSUM_PRECOMPILED_STANDARD} ${ARG_HEADERS})
  endif()
endfunction()

# netsum_compiled_together(TARGET): several files of the target are one translation unit, so that the headers of JSON and CLI11
# are parsed once for all of them. In release not for code that runs once a packet: what a compiler makes of it shall not depend on
# its neighbours, and compiled file by file it also shows a missing #include. The preset debug compiles everything file by file.
function(netsum_compiled_together TARGET)
  if(NETSUM_TOGETHER)
    set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
    # GCC takes a file's own types for a header's, since the unit includes the file.
    target_compile_options(${TARGET} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

function(netsum_library)
  cmake_parse_arguments(ARG "TOGETHER;APART;UNHURRIED" "NAME" "SOURCES;DEPS;PRIVATE" ${ARGN})
  set(target netsum_${ARG_NAME})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(netsum::${ARG_NAME} ALIAS ${target})
  # A library or plugin that is linked from the archives shows include/netsum alone (NETSUM_API), and uses its own copy.
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
                                              $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
  list(TRANSFORM ARG_DEPS PREPEND netsum::)
  target_link_libraries(${target} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE} $<BUILD_INTERFACE:netsum_options> $<BUILD_INTERFACE:netsum_fuzzed>)
  set_property(GLOBAL APPEND PROPERTY NETSUM_LIBRARIES ${target})
  if(ARG_TOGETHER OR (NETSUM_SANITIZE AND NOT ARG_APART))
    netsum_compiled_together(${target})
  endif()
  set(precompiled netsum_precompiled)
  set(optimization "")
  if(ARG_UNHURRIED AND NETSUM_SANITIZE)
    set(precompiled netsum_precompiled_unhurried)
    set(optimization -O0)
    target_compile_options(${target} PRIVATE ${optimization})
  endif()
  if(NETSUM_PRECOMPILE)
    netsum_precompiled(${precompiled} "-fPIC;${optimization}" LINK netsum_fuzzed)
    target_precompile_headers(${target} REUSE_FROM ${precompiled})
  endif()
endfunction()

# netsum_bpf_object(OBJECT SOURCE FOLDERS DEPENDS): a program for the kernel. Its headers are those of FOLDERS, netsum's in C,
# libbpf's, and the kernel's.
function(netsum_bpf_object)
  cmake_parse_arguments(ARG "" "OBJECT;SOURCE" "FOLDERS;DEPENDS" ${ARGN})
  list(TRANSFORM ARG_FOLDERS PREPEND -I)
  set(shared base/c_integers.h protocol/switchml/chip_rule.h wire/switchml_chip_layout.h)
  list(TRANSFORM shared PREPEND ${PROJECT_SOURCE_DIR}/src/)
  add_custom_command(OUTPUT ${ARG_OBJECT}
                     COMMAND ${NETSUM_BPF_CLANG} -target bpf -mcpu=v3 -std=gnu11 -O2 -g -ffreestanding -Wall -Wextra -Werror ${NETSUM_PATHLESS} ${ARG_FOLDERS}
                             -I${PROJECT_SOURCE_DIR}/src -idirafter /usr/include/${CMAKE_LIBRARY_ARCHITECTURE} -c ${ARG_SOURCE} -o ${ARG_OBJECT}
                     DEPENDS ${ARG_SOURCE} ${shared} ${ARG_DEPENDS} VERBATIM)
endfunction()

# Debian's libraries are not instrumented: without this, OpenSSL's own accesses are reported against atomics that are not seen.
set(NETSUM_TSAN_OPTIONS "TSAN_OPTIONS=ignore_noninstrumented_modules=1")

function(netsum_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "SOURCES;ALONE;DEPS;LABELS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  list(LENGTH ARG_SOURCES files)
  if(files GREATER 1)
    netsum_compiled_together(${ARG_NAME})
    set_source_files_properties(${ARG_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  list(TRANSFORM ARG_DEPS PREPEND netsum::)
  target_include_directories(${ARG_NAME} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} netsum_options test_main rapidcheck)
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  netsum_precompiled(precompiled_${folder} -fPIE HEADERS <gtest/gtest.h> LINK GTest::gtest)
  target_precompile_headers(${ARG_NAME} REUSE_FROM precompiled_${folder})
  # A unit test without threads or vectors finds the same however the unit is compiled. With the release build only those who ask have
  # them: scripts/build release unit_tests, ctest -C unit. All presets with the protocols' assertions have them at once.
  set(configuration "")
  if(folder STREQUAL "unit" AND CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT ARG_LABELS MATCHES "threaded|vectors")
    set_target_properties(${ARG_NAME} PROPERTIES EXCLUDE_FROM_ALL TRUE)
    add_dependencies(unit_tests ${ARG_NAME})
    set(configuration CONFIGURATIONS unit)
  endif()
  add_test(NAME ${ARG_NAME} ${configuration} COMMAND ${ARG_NAME})
  if("threaded" IN_LIST ARG_LABELS)
    add_dependencies(threaded_tests ${ARG_NAME})
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if(NETSUM_SANITIZE STREQUAL "thread")
    set_tests_properties(${ARG_NAME} PROPERTIES ENVIRONMENT "${NETSUM_TSAN_OPTIONS}")
  endif()
endfunction()
