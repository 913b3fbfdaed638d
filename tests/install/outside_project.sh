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

cmake -G Ninja -S "$work/examples" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release >"$work/configure.log" || {
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
  "$compiler" -std=c++20 -Wall -Wextra -Wconversion -Werror "${flags[@]}" -fsyntax-only "$work/examples/sgd.cpp"
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

# Ranks as processes: from C and Rust, which link the shared library alone, from Python by ctypes, and the training.
export LD_LIBRARY_PATH="$build/lib"
trap 'kill $SWITCH_PID; rm -rf "$work"' EXIT
coproc SWITCH { exec "$work/prefix/bin/netsum" switch --listen 127.0.0.1:0 2>/dev/null; }
read -r _ address <&"${SWITCH[0]}" # "listening ADDRESS"
# ranks RANKS LINE COMMAND [LAST ARGUMENT]: each of them prints LINE, in which R is its number.
ranks() {
  local rank command started=()
  read -ra command <<<"$3"
  for ((rank = 0; rank < $1; ++rank)); do
    "${command[@]}" "$address" "$rank" "$1" "${@:4}" >"$work/rank$rank" &
    started+=($!)
  done
  for ((rank = 0; rank < $1; ++rank)); do
    wait "${started[rank]}" || { cat "$work/rank$rank" && return 1; }
    grep -x "${2/R/$rank}" "$work/rank$rank"
  done
}
for compiler in gcc clang; do
  "$compiler" -std=c99 -Wall -Wextra -pedantic -Werror "-I$work/prefix/include" "$work/examples/hello_all_reduce.c" -o "$work/hello_c" "-L$build/lib" -lnetsum
  ranks 2 'rank R of 2: every element is 3' "$work/hello_c"
done
ranks 2 'rank R of 2: every element is 3' "/usr/bin/python3 $work/examples/hello_ctypes.py"
if command -v rustc >/dev/null; then
  rustc -D warnings -L "$build/lib" "$work/examples/hello_all_reduce.rs" -o "$work/hello_rs"
  ranks 2 'rank R of 2: every element is 3' "$work/hello_rs"
else
  echo "skipped: hello_all_reduce.rs, as there is no rustc"
fi
ranks 3 "rank R, packets: .* parameters are rank 0's" "$work/build/sgd" udp
ranks 3 "rank R, shared memory: .* parameters are rank 0's" "$work/build/sgd" shm
# A refusal has a text and a status.
{ "$work/hello_c" "$address" 2 2 2>&1 || true; } | grep 'rank 2 is not below the world size 2 (bad_argument)'
