#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests that two translation units that both include each header link into one program: no symbol is defined twice.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
headers "$(components)" | sed 's/.*/#include <&>/' >all.hpp
cp all.hpp unit.cpp
echo 'int main() { return 0; }' >main.cpp
flags=(-std=c++20 -O0 -pthread -I "$TUTTI_SOURCE_DIR/include" -I "$TUTTI_BUILD_DIR/include" -isystem /usr/include/eigen3)
libraries=(-pthread)
# The shell must split the flags of the libraries into words.
# shellcheck disable=SC2207
if [[ $(components) == *mpi* ]]; then
  flags+=($(mpicxx --showme:compile))
  libraries+=($(mpicxx --showme:link))
fi
if [[ $(components) == *turbojpeg* ]]; then libraries+=(-ljpeg); fi
if [[ $(components) == *stb* ]]; then libraries+=(-lstb); fi
if [[ $(components) == *zeromq* ]]; then libraries+=(-lzmq); fi
if [[ $(components) == *gloo* ]]; then libraries+=(-lgloo); fi
if [[ $(components) == *onednn* ]]; then libraries+=(-ldnnl -lgomp); fi
# Two units with the same headers compile to the same object file, so the test compiles one.
"$CXX" "${flags[@]}" -c unit.cpp -o one.o
cp one.o two.o
"$CXX" main.cpp one.o two.o -o both "${libraries[@]}"
./both
