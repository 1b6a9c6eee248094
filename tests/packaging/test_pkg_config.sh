#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# needs: stage
# Tests that pkg-config works with an installation that was moved.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if ! command -v pkg-config >/dev/null; then
  echo "SKIP: no pkg-config (Debian: apt-get install pkg-config)"
  exit 77
fi
install_moved "$work/prefix"
export PKG_CONFIG_PATH=$work/prefix/share/pkgconfig
want=$(sed -n 's/.*version = "\(.*\)";/\1/p' "$TUTTI_SOURCE_DIR/include/tutti/version.hpp")
[[ $(pkg-config --modversion tutti) == "$want" ]] || fail "expected version $want, got $(pkg-config --modversion tutti)"
modules=(tutti)
IFS=';' read -ra found <<<"$(components)"
for component in "${found[@]}"; do modules+=("tutti-$component"); done
# Takes tutti's large functions from the libraries of the build, as downstream() does.
mapfile -t taken < <(built_libraries)
if ((${#taken[@]})); then taken+=(-D TUTTI_SEPARATE_COMPILATION); fi
# The shell must split the flags into words.
# shellcheck disable=SC2046
"$CXX" -std=c++20 -O0 "$TUTTI_SOURCE_DIR"/examples/downstream/{main,report}.cpp -o downstream "${taken[@]}" \
  $(pkg-config --cflags --libs "${modules[@]}")
./downstream || fail "the downstream program fails"
