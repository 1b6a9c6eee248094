#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# needs: stage
# processors: 2
# Tests the project of docs/how-to/own-model.md, examples/own_project/CMakeLists.txt with examples/03_images.cpp: it
# builds with an installed tutti, and its program trains on a folder of images. Not optimised, as in the other tests of
# this folder.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

for component in onednn turbojpeg stb; do
  if [[ ";$(components);" != *";$component;"* ]]; then
    echo "SKIP: no component $component"
    exit 77
  fi
done
if [[ ! -x $TUTTI_BUILD_DIR/examples/save_images ]]; then
  echo "SKIP: no examples/save_images in the build"
  exit 77
fi

install_moved "$work/prefix"
mkdir mine
cp "$TUTTI_SOURCE_DIR/examples/own_project/CMakeLists.txt" mine
cp "$TUTTI_SOURCE_DIR/examples/03_images.cpp" mine/my_net.cpp
if ! { cmake -S mine -B mine/build -D "CMAKE_PREFIX_PATH=$work/prefix" -D CMAKE_CXX_FLAGS_RELEASE=-O0 \
  -D "CMAKE_CXX_COMPILER_LAUNCHER=bash;$TUTTI_SOURCE_DIR/tests/packaging/compile_once.sh" &&
  cmake --build mine/build --parallel 2; } >"$work/log" 2>&1; then
  cat "$work/log"
  fail "the project does not build"
fi
"$TUTTI_BUILD_DIR/examples/save_images" images 4
mine/build/my_net images runs/mine 1 || fail "the program fails"
[[ -f runs/mine/log.jsonl && -n $(ls runs/mine/checkpoints) ]] || fail "the run has no log or no checkpoint"
