#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests a tree with only some programs built, as after quickstart.sh: the programs that exist are installed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cmake -S "$TUTTI_SOURCE_DIR" -B build -D CMAKE_BUILD_TYPE=Release -D TUTTI_BUILD_TESTS=OFF -D TUTTI_BUILD_EXAMPLES=ON >log 2>&1 || fail "$(cat log)"
# The programs need not work, so the test compiles no program.
told=
mkdir -p build/tools build/examples
cp "$TUTTI_BUILD_DIR/tools/tutti-launch" build/tools/tutti-launch
cmake --install build --prefix "$work/first place" >log 2>&1 || fail "a tree with one program is not installed: $(tail -n 3 log)"
"first place/bin/tutti-launch" --help >/dev/null || fail "the installed tutti-launch does not run"
[[ -f "first place/include/tutti/version.hpp" ]] || fail "no headers: $(cat log)"
for program in train_cifar10 train_imagenet generate-trainer tutti-data; do
  [[ ! -e "first place/bin/$program" ]] || fail "$program is there, and was not built"
  # If a library is missing, the build has no such program.
  [[ $(find build -name cmake_install.cmake -exec grep -l "FILES \".*/$program\"" {} +) ]] || continue
  grep -q "Not installed, because it is not built: $program$" log || fail "it does not say that $program is missing: $(cat log)"
  told=yes
done
[[ $told ]] || echo "SKIP: neither examples nor tutti-data can be built here"
cmake --install build --prefix "$work/first place" --component libraries >log 2>&1 ||
  fail "the libraries of one program are not installed: $(tail -n 3 log)"
echo "all good"
