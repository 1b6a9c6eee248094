#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes an archive of the headers, for any compiler and processor. It needs no build:
#   make_headers.sh [--out FILE]          tutti-<version>-headers.tar.gz
# A program includes <tutti/tutti.hpp> and is compiled with -std=c++20 -pthread -I tutti-<version>/include. The archive also has
# the files for find_package(tutti), in share/cmake, and for pkg-config.
set -euo pipefail
me=make_headers.sh
# shellcheck source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"
version=$(version_of_tree)
out=tutti-$version-headers.tar.gz
while (($#)); do
  case $1 in
    --out)
      need_value "$1" "${2:-}"
      out=$2
      shift
      ;;
    -h | --help) print_help && exit 0 ;;
    *) fail 2 arguments "--out FILE" "$1" ;;
  esac
  shift
done
[[ -d $(dirname "$out") && ! -d $out ]] || fail 2 --out "a file in an existing folder" "$out"
out=$(cd "$(dirname "$out")" && pwd)/$(basename "$out")
for program in cmake python3; do
  need_program "$program" "cmake python3"
done
set_source_date
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
options=(-DTUTTI_INSTALL=ON -DTUTTI_BUILD_TESTS=OFF -DTUTTI_BUILD_EXAMPLES=OFF -DTUTTI_BUILD_TOOLS=OFF -DTUTTI_BUILD_BENCH=OFF)
top=$work/tutti-$version
if ! { cmake -S "$root" -B "$work/build" "${options[@]}" && cmake --install "$work/build" --prefix "$work/all"; } >"$work/log" 2>&1; then
  cat "$work/log" >&2
  fail 1 cmake "an installation of the headers" "an error"
fi
mkdir -p "$top/share/doc/tutti"
cp -a "$work/all/include" "$top"
cp -a "$work/all/share/cmake" "$work/all/share/pkgconfig" "$top/share"
for file in LICENSE NOTICE README.md CHANGELOG.md tutti.spdx.json; do cp -a "$work/all/share/doc/tutti/$file" "$top/share/doc/tutti"; done
write_tar "$work" "tutti-$version" "$out"
say "$out: $(du -h "$out" | cut -f1), $(find "$top/include" -name '*.hpp' | wc -l) headers"
