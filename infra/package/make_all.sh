#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes every package of a release except archives for CUDA, with their checksums and the versions of this machine's packages:
#   make_all.sh [--target PROCESSOR] [--out FOLDER] [--build DIR [--native]] [--only KIND,...]
# --target       x86_64 or aarch64, see make_package.sh                this machine's
# --out FOLDER   an empty or a new folder                              packages
# --build DIR    takes the programs of this build; without it they are built, in folders of build/package
# --native       allows a build for this machine's processor (TUTTI_EIGEN_NATIVE)
# --only         deb, tgz, archive, headers, wheel, conan       all; conan only if the program is on PATH
# The packages: a Debian package, an archive of the programs with their libraries (tgz), the same with the C library and Open MPI
# (archive), the headers, the wheel, which without --build compiles the programs once more without MPI, and the revisions of the
# Conan package. SHA256SUMS has the checksum of each, BUILDINFO the versions of compiler, Python and all Debian packages.
# docs/how-to/install.md says how to sign and check them.
set -euo pipefail
me=make_all.sh
# shellcheck source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"
kinds=(deb tgz archive headers wheel conan)
out=packages build='' only='' native=() target=$(this_processor)
while (($#)); do
  case $1 in
    --target | --out | --build | --only)
      need_value "$1" "${2:-}"
      printf -v "${1#--}" %s "$2"
      shift
      ;;
    --native) native=(--native) ;;
    -h | --help) print_help && exit 0 ;;
    *) fail 2 arguments "--target PROCESSOR, --out FOLDER, --build DIR, --native or --only KIND,..." "$1" ;;
  esac
  shift
done
check_target "$target"
chosen=("${kinds[@]}")
if [[ -n $only ]]; then
  IFS=, read -ra chosen <<<"$only"
  for kind in "${chosen[@]}"; do
    [[ " ${kinds[*]} " == *" $kind "* ]] || fail 2 --only "kinds of ${kinds[*]}" "$kind"
  done
fi
if [[ -n $build && ! -f $build/CMakeCache.txt ]]; then fail 2 --build "a folder that CMake has configured" "$build"; fi
makes() { [[ " ${chosen[*]} " == *" $1 "* ]]; }
mkdir -p "$out"
[[ -z $(ls -A "$out") ]] || fail 2 --out "an empty folder" "$out, which has files"
out=$(cd "$out" && pwd)
version=$(version_of_tree)
set_source_date
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Before $build becomes the folder that make_package.sh builds in, with MPI.
if makes wheel; then
  "$root/infra/package/wheel.py" --target "$target" ${build:+--build "$build"} "${native[@]}" --out "$out"
fi
archive=$out/tutti-$version-linux-$target.tar.gz
if [[ -z $build ]] && { makes deb || makes tgz || makes archive; }; then
  # It builds the programs.
  makes archive || archive=$work/archive.tar.gz
  "$root/infra/package/make_package.sh" --target "$target" --out "$archive"
  build=$root/build/package/build
  if [[ $target != "$(this_processor)" ]]; then build=$root/build/package/$target/build; fi
elif makes archive; then
  "$root/infra/package/make_package.sh" --target "$target" --build "$build" "${native[@]}" --out "$archive"
fi
# changes: prints the files that differ from the commit, and new files in the folders that packages are made of.
changes() {
  git -C "$root" --no-optional-locks status --porcelain --untracked-files=no
  git -C "$root" ls-files --others --exclude-standard -- backends cmake datasets examples include infra src tools
}
# packs GENERATOR PATTERN: makes a package with cpack.
packs() {
  if ! cpack --config "$build/CPackConfig.cmake" -B "$work/$1" -G "$1" >"$work/log" 2>&1; then
    cat "$work/log" >&2
    fail 1 "cpack -G $1" "a package" "an error"
  fi
  compgen -G "$work/$1/$2" >/dev/null || fail 1 "cpack -G $1" "a package $2" none
  find "$work/$1" -maxdepth 1 -name "$2" -exec mv {} "$out" \;
}
if makes deb; then packs DEB '*.deb'; fi
if makes tgz; then packs TGZ '*.tar.gz'; fi
if makes headers; then "$root/infra/package/make_headers.sh" --out "$out/tutti-$version-headers.tar.gz"; fi
if makes conan; then
  if command -v conan >/dev/null; then
    export CONAN_HOME=$work/conan
    if ! { conan profile detect && conan remote disable '*' && conan create "$root" -s compiler.cppstd=20 -s build_type=Release \
      --test-folder= --build missing && conan list "tutti/$version#*:*#*" --format=json >"$work/list"; } >"$work/log" 2>&1; then
      cat "$work/log" >&2
      fail 1 conan "a package" "an error"
    fi
    # The revisions are hashes of the recipe with its sources, and of the package's files.
    python3 - "$work/list" >"$out/tutti-$version-conan.txt" <<'P'
import json, sys
for name, entry in json.load(open(sys.argv[1]))["Local Cache"].items():
    for recipe, of in entry["revisions"].items():
        for package, it in of["packages"].items():
            print("\n".join(f"{name}#{recipe}:{package}#{revision}" for revision in it["revisions"]))
P
  elif [[ -n $only ]]; then
    fail 2 conan "the program" none "pip install conan"
  else
    say "no conan on PATH, so its package is not made"
  fi
fi
(cd "$out" && find . -maxdepth 1 -type f -printf '%f\n' | LC_ALL=C sort | xargs sha256sum >"$work/sums" && mv "$work/sums" SHA256SUMS)
{
  echo "source_date_epoch $SOURCE_DATE_EPOCH"
  commit=unknown
  if [[ -e $root/.git ]] && commit=$(git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown) && [[ $commit != unknown ]]; then
    if [[ -n $(changes) ]]; then commit+=" with changes"; fi
  fi
  echo "commit $commit"
  compiler=c++
  if [[ -n $build ]]; then
    compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
    echo "compiler $compiler"
  fi
  if command -v "$compiler" >/dev/null; then "$compiler" --version | sed -n '1s/^/compiler version /p'; fi
  if command -v cmake >/dev/null; then cmake --version | sed -n 1p; fi
  if command -v python3 >/dev/null; then
    python3 -c 'import sys, zlib; print("python", sys.version.split()[0], "zlib", zlib.ZLIB_RUNTIME_VERSION)'
  fi
  sysroot=
  if [[ -n $build ]]; then sysroot=$(sysroot_of "$build"); fi
  if command -v dpkg-query >/dev/null; then
    for admin in "" ${sysroot:+"--admindir=$sysroot/var/lib/dpkg"}; do
      # shellcheck disable=SC2086 # no word or one
      LC_ALL=C dpkg-query $admin -W -f '${Package}:${Architecture} ${Version}\n'
    done | LC_ALL=C sort -u
  fi
} >"$out/BUILDINFO"
chmod 644 "$out"/*
say "$(wc -l <"$out/SHA256SUMS") packages in $out"
