#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# takes long
# Tests a translation unit that includes each header and uses no part of it.
# It emits no code: no class may have a virtual function that makes each unit emit its table, and with the table all
# functions that it calls (a key function is `inline` in its declaration), and no header may define variables that are
# initialised at run time.
# Two such units link into one program: no symbol is defined twice.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
most=1000 # bytes of text and data; an empty unit has 0

flags=(-std=c++20 -O2 -pthread -I "$TUTTI_SOURCE_DIR/include" -I "$TUTTI_BUILD_DIR/include" -isystem /usr/include/eigen3)
here=$(components)
# Programs load the GPU's libraries at run time, so the headers of these libraries are enough.
if [[ -f ${CUDA_PATH:-/usr/local/cuda}/include/cuda_runtime_api.h ]]; then
  flags+=(-isystem "${CUDA_PATH:-/usr/local/cuda}/include")
  here+=";cuda;nccl"
fi
for component in ${here//;/ }; do flags+=(-D "TUTTI_HAS_${component^^}=1"); done
libraries=(-pthread)
# The shell must split the flags of the library into words.
# shellcheck disable=SC2207
if [[ $here == *mpi* ]]; then
  flags+=($(mpicxx --showme:compile))
  libraries+=($(mpicxx --showme:link))
fi
if [[ $here == *turbojpeg* ]]; then libraries+=(-ljpeg); fi
if [[ $here == *stb* ]]; then libraries+=(-lstb); fi
if [[ $here == *zeromq* ]]; then libraries+=(-lzmq); fi
if [[ $here == *gloo* ]]; then libraries+=(-lgloo); fi
if [[ $here == *openssl* ]]; then libraries+=(-lssl -lcrypto); fi
if [[ $here == *onednn* ]]; then libraries+=(-ldnnl -lgomp); fi

{ headers "$here" && printf '%s\n' tutti/backends/{decoders,make}.hpp; } | sort -u | sed 's/.*/#include <&>/' >unit.cpp
"$CXX" "${flags[@]}" -c unit.cpp -o one.o
bytes=$(size one.o | awk 'NR == 2 { print $1 + $2 }')
echo "every header of ${here//;/, }: $bytes bytes"
if ((bytes > most)); then
  echo "expected at most $most bytes; what is emitted, the largest last:"
  nm -CS --size-sort one.o | tail -n 20
  exit 1
fi

# Two units with the same headers compile to the same object file, so the test compiles one.
cp one.o two.o
echo 'int main() { return 0; }' >main.cpp
"$CXX" main.cpp one.o two.o -o both "${libraries[@]}"
./both
