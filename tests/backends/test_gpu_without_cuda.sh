#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests a program without the CUDA backend on a host with an NVIDIA GPU: one process of the host prints one line about
# the unused GPU. The test builds the program from the headers only. A mount namespace gives it a /dev with a file
# nvidia0.
set -euo pipefail
: "${TUTTI_SOURCE_DIR:?}" "${TUTTI_BUILD_DIR:?}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "FAILED: $*"
  sed 's/^/  | /' "$work/out" "$work/err"
  exit 1
}
: >"$work/out"
cat >"$work/program.cpp" <<'SOURCE'
#include <cstdio>
#include <string_view>
#include <tutti/backends/make/backend.hpp>
int main(int count, char** words) {
  tutti::BackendOptions o;
  o.where = "--backend";
  o.gpu = count < 3;
  std::puts(tutti::make_backend(count > 1 ? std::string_view(words[1]) : "auto", o)->name().c_str());
}
SOURCE
"${TUTTI_CXX:-c++}" -std=c++20 -O0 -I "$TUTTI_SOURCE_DIR/include" -I "$TUTTI_BUILD_DIR/include" "$work/program.cpp" \
  -o "$work/program" -pthread 2>"$work/err" || fail "a program without components does not compile"

# within DEVICE COMMAND...: runs COMMAND with a /dev that contains null and, if DEVICE is not empty, the file DEVICE.
way=''
for try in 'unshare -m' 'unshare -rm'; do
  if [[ -z $way ]] && $try mount -t tmpfs none /mnt 2>/dev/null; then way=$try; fi
done
[[ -n $way ]] || { echo "SKIP: no mount namespace" && exit 77; }
within() {
  local device=$1
  shift
  # shellcheck disable=SC2016  # the inner shell expands it
  $way sh -c 'mkdir -p "$1" && : >"$1/null" && mount --bind /dev/null "$1/null" && { [ -z "$2" ] || : >"$1/$2"; } &&
    mount --rbind "$1" /dev && { [ ! -d /proc/driver ] || mount -t tmpfs none /proc/driver; } && shift 2 && exec "$@"' \
    _ "$work/dev$device" "$device" "$@" >"$work/out" 2>"$work/err" || fail "$*: status $?"
}
quiet() { [[ ! -s $work/err ]] || fail "it says something: $*"; }

within '' "$work/program"
grep -q '^reference$' "$work/out" || fail "another backend"
quiet "a host without a GPU"
within nvidia0 "$work/program"
grep -q '^reference$' "$work/out" || fail "another backend"
[[ $(wc -l <"$work/err") == 1 ]] || fail "not one line"
grep -q -F -- '--backend auto trains on the processor: this host has an NVIDIA GPU (/dev/nvidia0), but this build has no CUDA backend. hint: build on a machine with' \
  "$work/err" || fail "another line"
within nvidia0 env OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "$work/program"
quiet "the second process of a host"
within nvidia0 "$work/program" reference
quiet "a backend that was chosen by name"
within nvidia0 "$work/program" auto without
quiet "a caller that wants no GPU"
within nvidiactl "$work/program"
quiet "a driver without a GPU"
