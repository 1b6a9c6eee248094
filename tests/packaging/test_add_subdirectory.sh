#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests tutti inside the build of another project: it adds its targets, but no tests, programs or install rules.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
downstream "$work/build" -D "TUTTI_SOURCE=$TUTTI_SOURCE_DIR" -D CMAKE_EXPORT_COMPILE_COMMANDS=ON
if find "$work/build/tutti" -name '*.o' | grep .; then fail "these files of tutti's own programs were built"; fi
cmake --install "$work/build" --prefix "$work/prefix" >/dev/null
if find "$work/prefix" -type f 2>/dev/null | grep .; then fail "these files of tutti were installed"; fi
grep -q 'main.cpp' "$work/build/compile_commands.json" || fail "no compile commands"
if grep -q -e '-march=native' "$work/build/compile_commands.json"; then
  fail "a consumer gets -march=native without asking"
fi
