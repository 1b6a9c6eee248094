#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes the packages for aarch64 on an x86-64 Debian 12 machine and runs their programs under qemu-user, each package in an empty root.
#   tests/packaging/aarch64_packages.sh [--out FOLDER] [--packages FOLDER] [--only deb,tgz,archive,wheel]
# --out       build/aarch64-packages: the packages, a log of each program, and results.txt
# --packages  tests the packages of this folder, which `make_all.sh --target aarch64` has made, and makes none
# --only      these packages
# The first call compiles all programs, those of the wheel a second time, which takes hours. A script that was stopped continues: it does
# not compile, pack or run again what has passed and did not change. The root of the archive has no file but the archive's and QEMU, that
# of the Debian package has the libraries of the packages in its Depends, and those of tgz and wheel have the C library. tutti-plan
# and prepare-data are scripts and run with this machine's Python. Ends with status 1 if a program failed, 2 after a wrong option, 77
# if this machine lacks root, Debian's tools, the cross compiler or QEMU.
set -euo pipefail
me=aarch64_packages.sh
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=../../infra/package/common.sh
source "$root/infra/package/common.sh"
out=$root/build/aarch64-packages packages='' only=deb,tgz,archive,wheel
while (($#)); do
  case $1 in
    --out | --packages | --only)
      need_value "$1" "${2:-}"
      printf -v "${1#--}" %s "$2"
      shift
      ;;
    *) fail 2 arguments "--out FOLDER, --packages FOLDER or --only KIND,..." "$1" ;;
  esac
  shift
done
IFS=, read -ra kinds <<<"$only"
for kind in "${kinds[@]}"; do
  [[ $kind =~ ^(deb|tgz|archive|wheel)$ ]] || fail 2 --only "kinds of deb, tgz, archive, wheel" "$kind"
done
[[ $(uname -sm) == 'Linux x86_64' ]] || { echo "SKIP: it needs Linux on x86-64" && exit 77; }
((EUID == 0)) && unshare --mount true 2>/dev/null || { echo "SKIP: it takes root and namespaces" && exit 77; }
for program in aarch64-linux-gnu-g++:g++-aarch64-linux-gnu qemu-aarch64-static:qemu-user-static dpkg-shlibdeps:dpkg-dev patchelf:patchelf; do
  command -v "${program%:*}" >/dev/null || { echo "SKIP: no ${program%:*} (Debian: apt-get install ${program#*:})" && exit 77; }
done
mkdir -p "$out"/{logs,passed}
out=$(cd "$out" && pwd)
sysroot=$root/build/package/aarch64/sysroot
# The commit, with changes: packages of the same sources are not made again.
sources() { { git -C "$root" rev-parse HEAD && git -C "$root" diff HEAD; } 2>/dev/null | sha256sum | cut -c 1-16; }
if [[ -z $packages ]]; then
  packages=$out/packages
  made="$(sources) $only"
  if [[ ! -f $packages/SHA256SUMS || $(cat "$out/made" 2>/dev/null) != "$made" ]]; then
    rm -rf "$packages"
    "$root/infra/package/make_all.sh" --target aarch64 --only "$only" --out "$packages"
    echo "$made" >"$out/made"
  fi
fi
[[ -d $packages ]] || fail 2 --packages "a folder" "$packages"
[[ -f $sysroot/complete ]] || fail 2 --packages "the libraries of arm64 in $sysroot" none "make the packages on this machine"

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
failed=0
# check NAME COMMAND...: runs it, unless it has passed with this package.
check() {
  local name=$1 log=$out/logs/$kind-$1.log begin=$SECONDS
  shift
  if [[ -f $out/passed/$kind-$name && $(<"$out/passed/$kind-$name") == "$sum" ]]; then return; fi
  if "$@" >"$log" 2>&1; then
    echo "$sum" >"$out/passed/$kind-$name"
    result passed "$name" $((SECONDS - begin))
  else
    tail -n 20 "$log" >&2
    result failed "$name" $((SECONDS - begin))
    failed=1
  fi
}
# result WORD NAME SECONDS: replaces the line of this check in results.txt.
result() {
  touch "$out/results.txt"
  { grep -v " $kind $2," "$out/results.txt" || true; echo "$1 $kind $2, $3 s"; } | sort -k 2 >"$out/results.new"
  mv "$out/results.new" "$out/results.txt"
  say "$1 $kind $2, $3 s"
}
# in_root PROGRAM ARGUMENT...: runs a program in the root under QEMU, with /proc and a /dev of its own.
in_root() {
  # shellcheck disable=SC2016 # expanded by the shell that it starts
  timeout 3600 unshare --mount --pid --fork --kill-child --net sh -c 'cd "$1" && mount -t proc proc proc && mount -t tmpfs tmpfs dev &&
    mkdir dev/shm && mknod -m 666 dev/null c 1 3 && mknod -m 666 dev/urandom c 1 9 && mknod -m 666 dev/zero c 1 5 && shift &&
    exec chroot . /qemu "$@"' _ "$place" "$@"
}
# tells TEXT COMMAND...: the command succeeds and prints the text.
tells() {
  local text=$1 told
  shift
  told=$("$@" 2>&1) || { echo "$told" && return 1; }
  echo "$told"
  [[ $told == *"$text"* ]] || { echo "expected the text: $text" && return 1; }
}
# with_libraries PROGRAM...: copies the loader and the libraries of these files, with the names that programs ask for, to the root.
with_libraries() {
  local name path
  while read -r name path; do
    mkdir -p "$place/lib"
    cp -L "$path" "$place/lib/$name"
  done < <("$root/infra/package/elf_libraries.py" --root "$sysroot" "$@")
}
c_library() { # copies the C library alone
  local name
  mkdir -p "$place/lib"
  for name in ld-linux-aarch64.so.1 libc.so.6 libm.so.6 libdl.so.2 librt.so.1 libpthread.so.0 libresolv.so.2; do
    cp -L "$sysroot/lib/aarch64-linux-gnu/$name" "$place/lib/$name"
  done
}
# depends_name_all: each library that a program of the Debian package needs belongs to a package of its Depends.
depends_name_all() {
  local depends path name owner
  depends=$(dpkg-deb -f "$file" Depends)
  echo "$depends"
  for path in "$place"/usr/bin/*; do
    [[ $(head -c 4 "$path" | tail -c 3) == ELF ]] || continue
    while read -r name; do
      owner=$(dpkg-query --admindir="$sysroot/var/lib/dpkg" -S "*/$name" | grep -v -e '-dev:' | sed -n '1s/:.*//p')
      [[ ", $depends," == *", $owner"[\ ,]* ]] || { echo "$path needs $name of $owner" && return 1; }
    done < <(readelf -dW "$path" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  done
  [[ $(dpkg-deb -f "$file" Architecture) == arm64 ]]
}
train=(--dataset synthetic --num-examples 96 --image-shape 3,16,16 --depth 8 --batch-size 32 --max-steps 3)
# programs FOLDER: runs the programs of FOLDER of the root.
programs() {
  local name
  check train_cifar10 tells "own kernels neon" in_root "$1/train_cifar10" "${train[@]}" --run-dir /tmp/run
  for name in train_imagenet tutti-train tutti-launch tutti-predict tutti-report tutti-export tutti-data; do
    check "$name" tells "Usage: $name" in_root "$1/$name" --help
  done
  check report tells "" report "$1"
  check tutti-plan tells "| 4 | 1024 |" python3 "$place$1/tutti-plan" 668:256 --type c7g.4xlarge --nodes 4
  check prepare-data tells "usage: prepare" bash "$place$1/prepare-data" --help
}
# scripts_of_wheel: each script names the processor that it needs, and on that processor starts its program. This needs no root:
# scripts stand in for uname and for the programs, and start them under QEMU.
scripts_of_wheel() {
  local try=$work/try script name status
  mkdir -p "$try/lib" "$try/stand-in"
  cp -a "$place/opt/lib/tutti" "$try/lib"
  cp -a "$work"/wheel-files/tutti-*.data/scripts "$try/bin"
  printf '#!/bin/sh\necho aarch64\n' >"$try/stand-in/uname"
  for name in "$try"/lib/tutti/bin/*; do
    [[ $(head -c 4 "$name" | tail -c 3) == ELF ]] || continue
    mv "$name" "$name.elf"
    printf '#!/bin/sh\nexec qemu-aarch64-static -0 "$0" -L "%s" "$0.elf" "$@"\n' "$sysroot" >"$name"
    chmod 755 "$name"
  done
  chmod 755 "$try"/stand-in/uname
  for script in "$try"/bin/*; do
    name=$(basename "$script") status=0
    "$script" --help >"$try/told" 2>&1 || status=$?
    if [[ $status != 4 || $(<"$try/told") != "$name: [processor] expected aarch64, got x86_64. hint: "* ]]; then
      echo "$name on this machine ends with $status: $(<"$try/told")"
      return 1
    fi
    PATH=$try/stand-in:$PATH "$script" --help >"$try/told" 2>&1 || { cat "$try/told" && return 1; }
    grep -qi "usage: ${name%-data}" "$try/told" || { cat "$try/told" && return 1; }
  done
}
# report FOLDER: makes the page of a run, after the run, which may have passed before.
report() {
  [[ -d $place/tmp/run ]] || in_root "$1/train_cifar10" "${train[@]}" --run-dir /tmp/run
  in_root "$1/tutti-report" /tmp/run --out /tmp/page.html && grep -q '<html' "$place/tmp/page.html"
}
for kind in "${kinds[@]}"; do
  case $kind in
    deb) pattern='*_arm64.deb' ;;
    tgz) pattern='*-Linux-aarch64.tar.gz' ;;
    archive) pattern='*-linux-aarch64.tar.gz' ;;
    wheel) pattern='*-linux_aarch64.whl' ;;
  esac
  file=$(compgen -G "$packages/$pattern" | head -n 1) || fail 1 "$kind" "a package $pattern in $packages" none
  sum=$(sha256sum "$file" | cut -d ' ' -f 1)
  say "$(basename "$file"), $(stat -c %s "$file") bytes"
  place=$work/$kind
  mkdir -p "$place"/{proc,dev,tmp,opt}
  cp "$(command -v qemu-aarch64-static)" "$place/qemu"
  case $kind in
    deb)
      dpkg-deb -x "$file" "$place"
      mapfile -t elf < <(for path in "$place"/usr/bin/*; do [[ $(head -c 4 "$path" | tail -c 3) != ELF ]] || echo "$path"; done)
      with_libraries "${elf[@]}"
      check depends depends_name_all
      programs /usr/bin
      ;;
    tgz)
      tar -xzf "$file" -C "$place/opt"
      c_library
      programs "/opt/$(ls "$place/opt")/bin"
      ;;
    archive)
      tar -xzf "$file" -C "$place/opt"
      programs /opt/tutti/bin
      ;;
    wheel)
      # As pip does: data at the top, scripts in bin, with the modes of the wheel.
      python3 - "$file" "$work/wheel-files" <<'END'
import os, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    for entry in wheel.infolist():
        os.chmod(wheel.extract(entry, sys.argv[2]), entry.external_attr >> 16 & 0o777)
END
      cp -a "$work"/wheel-files/tutti-*.data/data/. "$place/opt"
      c_library
      check scripts scripts_of_wheel
      # A script cannot start a program for another processor, so QEMU starts the programs without them.
      for name in train_cifar10 train_imagenet tutti-train tutti-predict tutti-export; do
        check "$name" tells "Usage: $name" in_root /opt/lib/tutti/bin/tutti-programs "$name" --help
      done
      check train tells "own kernels neon" in_root /opt/lib/tutti/bin/tutti-programs train_cifar10 "${train[@]}" --run-dir /tmp/run
      for name in tutti-launch tutti-report tutti-data; do check "$name" tells "Usage: $name" in_root "/opt/lib/tutti/bin/$name" --help; done
      ;;
  esac
done
cat "$out/results.txt" >&2
exit $failed
