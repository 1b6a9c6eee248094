#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# needs: stage
# processors: 2
# Tests tutti::compiled: the downstream project links the trainer, the executor and the kernels from a library that is
# compiled once, and its own files do not contain them. Tested as an installed package, and as a source tree in the
# project. With TUTTI_IMPLEMENTATION, a file of the project compiles them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
install_moved "$work/prefix"

# has FUNCTION LETTERS FILE: succeeds if the file has this function of tutti as one of these kinds of symbol. U means
# undefined.
has() {
  nm -C "$3" >"$work/symbols"
  grep -qE " [$2] tutti::$1\\(" "$work/symbols"
}

downstream "$work/installed" -D "CMAKE_PREFIX_PATH=$work/prefix" -D DOWNSTREAM_COMPILED=ON
object=$(find "$work/installed" -name 'main.cpp.o') core=$(find "$work/installed" -name 'core.cpp.o')
has Trainer::step U "$object" || fail "the downstream program does not take the trainer from the library"
for function in Trainer::take_metrics Executor::train CpuOps::kernel; do
  if has $function TW "$object"; then fail "the downstream program compiles $function again"; fi
  has $function TW "$core" || fail "the library lacks $function"
done

downstream "$work/taken in" -D "TUTTI_SOURCE=$TUTTI_SOURCE_DIR" -D DOWNSTREAM_COMPILED=ON

downstream "$work/implementation" -D "CMAKE_PREFIX_PATH=$work/prefix" -D DOWNSTREAM_IMPLEMENTATION=ON
object=$(find "$work/implementation" -name 'main.cpp.o') core=$(find "$work/implementation" -name 'tutti.cpp.o')
if has Trainer::take_metrics TW "$object"; then fail "a file next to TUTTI_IMPLEMENTATION compiles the trainer again"; fi
has Trainer::take_metrics TW "$core" || fail "the file with TUTTI_IMPLEMENTATION lacks the trainer"
