#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the archive of the headers: two temporary folders, umasks and time zones give the same bytes. It has each header, the
# licence and the bill of materials, and a program compiles from it with one #include and -I alone. pkg-config finds it, and
# with TUTTI_CHECK_ALL=1 a project finds it with find_package.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
make=$TUTTI_SOURCE_DIR/infra/package/make_headers.sh
"$(dirname "$make")/build_twice.sh" --build "$TUTTI_BUILD_DIR" --only headers --keep packages 2>log || fail "two archives differ: $(cat log)"
archive=$(echo packages/first/tutti-*-headers.tar.gz)
grep -q "identical: $(basename "$archive"), " log || fail "$(cat log)"
grep -q "^compiler version " packages/first/BUILDINFO || fail "no compiler in BUILDINFO"
[[ $(tar -tvzf "$archive" | awk '{ print $2 }' | sort -u) == 0/0 ]] || fail "files with another owner than root"

tar -xzf "$archive"
top=$(echo "$work"/tutti-*)
{
  (cd "$TUTTI_SOURCE_DIR/include" && find tutti -name '*.hpp')
  (cd "$TUTTI_SOURCE_DIR" && find backends datasets -name '*.hpp' | sed 's|^|tutti/|')
} | sort >want
(cd "$top/include" && find tutti -name '*.hpp' | sort) >got
diff want got || fail "the headers differ from the tree's (<: missing)"
for file in LICENSE NOTICE tutti.spdx.json; do [[ -s $top/share/doc/tutti/$file ]] || fail "no $file"; done
if names_folder "$TUTTI_SOURCE_DIR" "$top" || names_folder "$work" "$top"; then fail "these files name folders of this machine"; fi

cat >net.cpp <<'P'
#include <tutti/tutti.hpp>
int main() {
  tutti::Builder b(3, 8, 8);
  b.normalize({128, 128, 128}, {1, 1, 1});
  return tutti::version == std::string("") ? 1 : 0;
}
P
"$CXX" -std=c++20 -pthread -fsyntax-only -I "$top/include" net.cpp || fail "a program does not compile with one #include"
for file in tuttiConfig tuttiConfigVersion tutti-targets; do [[ -s $top/share/cmake/tutti/$file.cmake ]] || fail "no $file.cmake"; done
if command -v pkg-config >/dev/null; then
  cflags=$(PKG_CONFIG_PATH=$top/share/pkgconfig pkg-config --cflags tutti) || fail "pkg-config finds no tutti"
  [[ " $cflags " == *" -I$top/"*include" "* ]] || fail "pkg-config gives other folders: $cflags"
fi
if [[ ${TUTTI_CHECK_ALL:-} == 1 ]]; then
  downstream "$work/build" -D "CMAKE_PREFIX_PATH=$top"
fi

"$make" --out 2>log && fail "--out without a path is accepted"
grep -qF '[--out] expected a value after it' log || fail "$(cat log)"
mkdir programs
for program in bash basename cmake dirname git mktemp readlink rm sed; do ln -s "$(command -v "$program" || echo /none)" programs; done
if PATH=$work/programs bash "$make" --out none.tar.gz 2>log; then fail "it runs without python3"; fi
grep -qF '[python3] expected the program, got none' log || fail "$(cat log)"
if "$make" --out "$work" 2>log; then fail "a folder is accepted as a file"; fi
grep -qF '[--out] expected a file in an existing folder' log || fail "$(cat log)"
