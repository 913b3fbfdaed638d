#!/usr/bin/env bash
# Installs netsum into an empty prefix and builds and runs examples/ against it, through CMake's package, through pkg-config,
# and with the shared library: outside_project.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
build=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$source/examples" "$work/examples" # nothing of the source tree may be needed

cmake --install "$build" --prefix "$work/prefix" >"$work/install.log" || {
  cat "$work/install.log"
  exit 1
}
"$work/prefix/bin/netsum" --version

cmake -G Ninja -S "$work/examples" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/configure.log" || {
  cat "$work/configure.log"
  exit 1
}
cmake --build "$work/build"
"$work/build/hello_all_reduce"

export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name netsum.pc)")
read -ra flags <<<"$(pkg-config --cflags netsum)"
read -ra libraries <<<"$(pkg-config --libs netsum)"
# Neither the headers nor the example warn, whatever a user turns on.
for compiler in g++ clang++; do
  "$compiler" -std=c++20 -Wall -Wextra -Wconversion -Werror "${flags[@]}" "$work/examples/hello_all_reduce.cpp" -o "$work/hello" "${libraries[@]}"
  "$work/hello"
done
cat >"$work/connect.cpp" <<'END'
#include "netsum/communicator.h"
netsum::Communicator connect(unsigned rank) {
  return netsum::Communicator::connect({.aggregators = {"10.0.0.1:7170"}, .job = "hello", .rank = rank, .world_size = 4});
}
END
for standard in c++20 c++2b; do
  g++ "-std=$standard" -Wall -Wextra -Werror -fsyntax-only "${flags[@]}" "$work/connect.cpp"
done

# From C, which links the shared library alone, and from Python by ctypes: two ranks each.
export LD_LIBRARY_PATH="$build/lib"
for compiler in gcc clang; do
  "$compiler" -std=c99 -Wall -Wextra -pedantic -Werror "-I$work/prefix/include" "$work/examples/hello_all_reduce.c" -o "$work/hello_c" "-L$build/lib" -lnetsum
done
trap 'kill $SWITCH_PID; rm -rf "$work"' EXIT
coproc SWITCH { "$work/prefix/bin/netsum" switch --listen 127.0.0.1:0 2>/dev/null; }
read -r _ address <&"${SWITCH[0]}" # "listening ADDRESS"
for program in "$work/hello_c" "/usr/bin/python3 $work/examples/hello_ctypes.py"; do
  read -ra command <<<"$program"
  "${command[@]}" "$address" 0 2 >"$work/first" &
  "${command[@]}" "$address" 1 2 | grep -x 'rank 1 of 2: every element is 3'
  wait $!
  grep -x 'rank 0 of 2: every element is 3' "$work/first"
done
# A refusal has a text and a status.
{ "$work/hello_c" "$address" 2 2 2>&1 || true; } | grep 'rank 2 is not below the world size 2 (bad_argument)'
