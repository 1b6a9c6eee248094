#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests that a program that includes each header and uses no part of it emits no code. No class may have a virtual
# function that makes each unit emit its table, and with the table all functions that it calls (a key function is
# `inline` in its declaration). No header may define variables that are initialised at run time.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
most=1000 # bytes of text and data; an empty main() is 51

flags=(-std=c++20 -O2 -pthread -I "$TUTTI_SOURCE_DIR/include" -I "$TUTTI_BUILD_DIR/include" -isystem /usr/include/eigen3)
here=$(components)
# Programs load the GPU's libraries at run time, so the headers of these libraries are enough.
if [[ -f ${CUDA_PATH:-/usr/local/cuda}/include/cuda_runtime_api.h ]]; then
  flags+=(-isystem "${CUDA_PATH:-/usr/local/cuda}/include")
  here+=";cuda;nccl"
fi
for component in ${here//;/ }; do flags+=(-D "TUTTI_HAS_${component^^}=1"); done
if [[ $here == *mpi* ]]; then
  # The shell must split the flags of the library into words.
  # shellcheck disable=SC2207
  flags+=($(mpicxx --showme:compile))
fi

{ headers "$here" && printf '%s\n' tutti/backends/{decoders,make}.hpp; } | sed 's/.*/#include <&>/' >empty.cpp
echo 'int main() {}' >>empty.cpp
"$CXX" "${flags[@]}" -c empty.cpp -o empty.o
bytes=$(size empty.o | awk 'NR == 2 { print $1 + $2 }')
echo "every header of ${here//;/, }: $bytes bytes"
if ((bytes > most)); then
  echo "expected at most $most bytes; what is emitted, the largest last:"
  nm -CS --size-sort empty.o | tail -n 20
  exit 1
fi
