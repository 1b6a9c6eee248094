#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the archive of the headers: two folders, umasks and time zones give the same bytes. It has each header, the licence and
# the bill of materials, and a program compiles from it with one #include and -I alone, and with find_package.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
make=$TUTTI_SOURCE_DIR/infra/package/make_headers.sh
"$make" --out one.tar.gz 2>log || fail "make_headers.sh fails: $(cat log)"
mkdir "other temporary folder"
(umask 077 && TMPDIR="$work/other temporary folder" TZ=Asia/Tokyo LC_ALL=C.UTF-8 "$make" --out two.tar.gz 2>log) || fail "make_headers.sh fails: $(cat log)"
cmp one.tar.gz two.tar.gz || fail "two archives of the same headers differ"
[[ $(tar -tvzf one.tar.gz | awk '{ print $2 }' | sort -u) == 0/0 ]] || fail "files with another owner than root"

tar -xzf one.tar.gz
top=$(echo "$work"/tutti-*)
{
  (cd "$TUTTI_SOURCE_DIR/include" && find tutti -name '*.hpp')
  (cd "$TUTTI_SOURCE_DIR" && find backends datasets -name '*.hpp' | sed 's|^|tutti/|')
} | sort >want
(cd "$top/include" && find tutti -name '*.hpp' | sort) >got
diff want got || fail "the headers differ from the tree's (<: missing)"
for file in LICENSE NOTICE tutti.spdx.json; do [[ -s $top/share/doc/tutti/$file ]] || fail "no $file"; done
if grep -rIl -e "$TUTTI_SOURCE_DIR" -e "$work" "$top"; then fail "these files name folders of this machine"; fi

cat >net.cpp <<'P'
#include <tutti/tutti.hpp>
int main() {
  tutti::Builder b(3, 8, 8);
  b.normalize({128, 128, 128}, {1, 1, 1});
  return tutti::version == std::string("") ? 1 : 0;
}
P
"$CXX" -std=c++20 -pthread -fsyntax-only -I "$top/include" net.cpp || fail "a program does not compile with one #include"
downstream "$work/build" -D "CMAKE_PREFIX_PATH=$top"

"$make" --out 2>log && fail "--out without a path is accepted"
grep -qF '[--out] expected a path after it' log || fail "$(cat log)"
if "$make" --out "$work" 2>log; then fail "a folder is accepted as a file"; fi
grep -qF '[--out] expected a file in an existing folder' log || fail "$(cat log)"
