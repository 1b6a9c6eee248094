#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes the packages twice and compares them byte by byte. Ends with 1 if a package differs.
#   build_twice.sh [--target PROCESSOR] [--build DIR [--native]] [--only KIND,...] [--keep FOLDER]
# Without --build it compiles the last commit twice, in two folders with names of different lengths: it takes as long as two
# builds. With --build both have the programs of this build, and show that the packages do not depend on when and by whom they
# are made. The second differs from the first in umask, time zone, language, temporary folder, home and order of files.
# --keep FOLDER  leaves the packages there, in first and second. Without it they are removed.
# If they differ and diffoscope is installed, it says in what.
set -euo pipefail
me=build_twice.sh
# shellcheck source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"
build='' keep='' options=()
while (($#)); do
  case $1 in
    --target | --build | --only | --keep)
      need_value "$1" "${2:-}"
      case $1 in
        --build)
          [[ -f $2/CMakeCache.txt ]] || fail 2 --build "a folder that CMake has configured" "$2"
          build=$(cd "$2" && pwd)
          options+=(--build "$build")
          ;;
        --only | --target) options+=("$1" "$2") ;;
        *) keep=$2 ;;
      esac
      shift
      ;;
    --native) options+=(--native) ;;
    -h | --help) print_help && exit 0 ;;
    *) fail 2 arguments "--target PROCESSOR, --build DIR, --native, --only KIND,... or --keep FOLDER" "$1" ;;
  esac
  shift
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
packages=${keep:-$work/packages}
mkdir -p "$packages"
packages=$(cd "$packages" && pwd)
[[ -z $(ls -A "$packages") ]] || fail 2 --keep "an empty folder" "$packages, which has files"
set_source_date
first=$root second=$root
if [[ -z $build ]]; then
  first=$work/1/tutti second=$work/another-folder-with-a-longer-name/tutti
  for clone in "$first" "$second"; do git clone -q "$root" "$clone"; done
fi
mkdir -p "$work/t" "$work/second temporary folder" "$work/home"
say "the first build"
(umask 022 && env "TMPDIR=$work/t" TZ=UTC LC_ALL=C "$first/infra/package/make_all.sh" --out "$packages/first" "${options[@]}")
say "the second build"
# A language with another order of names than C, if one is installed.
language=$(locale -a 2>/dev/null | grep -vE '^(C|POSIX)(\.|$)' | grep -iE -m 1 'utf-?8$' || true)
(umask 077 && env "TMPDIR=$work/second temporary folder" TZ=Asia/Tokyo "LC_ALL=${language:-C.UTF-8}" "HOME=$work/home" PYTHONHASHSEED=7 \
  "$second/infra/package/make_all.sh" --out "$packages/second" "${options[@]}")

different=0
while read -r name; do
  if cmp -s "$packages/first/$name" "$packages/second/$name"; then
    say "identical: $name, $(stat -c %s "$packages/first/$name") bytes"
    continue
  fi
  different=1
  say "different: $name"
  [[ -f $packages/first/$name && -f $packages/second/$name ]] || continue
  if command -v diffoscope >/dev/null; then
    diffoscope --text-color never "$packages/first/$name" "$packages/second/$name" >&2 || true
  else
    say "for the differences: pip install diffoscope"
  fi
done < <(cat "$packages"/*/SHA256SUMS | sed 's/^[0-9a-f]*  //' | LC_ALL=C sort -u)
cmp "$packages/first/BUILDINFO" "$packages/second/BUILDINFO" >&2 || different=1
exit "$different"
