#!/usr/bin/env bash
# A release does not tell where and when it was built: same_bytes.sh BUILD_DIR SOURCE_DIR. No installed file names either folder, no archive
# has a date; and an object and a program for the kernel are the same, byte by byte, when that build's commands make them in two folders.
set -euo pipefail
build=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "same_bytes: $*" >&2
  exit 1
}

cmake --install "$build" --prefix "$work/prefix" >"$work/log" || fail "$(tail "$work/log")"
! grep -rlF -e "$source" -e "$build" "$work/prefix" || fail "these files name the folder that they were built in"
! find "$work/prefix" -name '*.a' -exec env TZ=UTC ar tv {} \; | grep -v ' Jan  1 00:00 1970 ' || fail "these parts of archives have dates"

export CCACHE_DISABLE=1 # it would give the second folder what it keeps of the first
made() {
  local folder
  for folder in one a/longer/name; do
    mkdir -p "$work/$folder/build/$(dirname "$1")"
    [ -e "$work/$folder/src" ] || cp -r "$source/src" "$source/include" "$work/$folder"
    ninja -C "$build" -t commands -s "$1" | sed -e "s#$build#$work/$folder/build#g; s#$source#$work/$folder#g" >"$work/commands"
    cd "$work/$folder/build"
    grep -o ' -o [^ ]*/' "$work/commands" | cut -c5- | xargs mkdir -p
    sh -e "$work/commands" || fail "cannot make $1 elsewhere"
  done
  cmp "$work/one/build/$1" "$work/a/longer/name/build/$1"
}
made src/base/CMakeFiles/netsum_base.dir/error.cc.o
[ ! -e "$build/src/dataplane/xdp/chip.bpf.o" ] || made src/dataplane/xdp/chip.bpf.o
