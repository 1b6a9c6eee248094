#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# processors: 2
# tutti::compiled: the downstream project links the large templates from a library that is compiled once, and its own
# files hold none of them; as an installed package, and as a source tree that it takes in.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
install_moved "$work/prefix"

# executor LETTERS FILE: is the executor's train() in the file as one of these kinds of symbol? U: undefined.
executor() {
  nm -C "$2" >"$work/symbols"
  grep -qE " [$1] tutti::Executor<[A-Za-z:]+>::train\\(" "$work/symbols"
}

downstream "$work/installed" -D "CMAKE_PREFIX_PATH=$work/prefix" -D DOWNSTREAM_COMPILED=ON
object=$(find "$work/installed" -name 'main.cpp.o')
executor U "$object" || fail "the downstream program does not take the executor from the library"
if executor TW "$object"; then fail "the downstream program compiles the executor again"; fi
executor TW "$(find "$work/installed" -name 'core.cpp.o')" || fail "the library lacks the executor of Reference"

downstream "$work/taken in" -D "TUTTI_SOURCE=$TUTTI_SOURCE_DIR" -D DOWNSTREAM_COMPILED=ON
