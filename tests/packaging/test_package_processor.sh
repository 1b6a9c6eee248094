#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests what make_package.sh and setup.sh do on processors other than x86-64, with stand-ins for uname and for an unpacked archive.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
scripts=$TUTTI_SOURCE_DIR/infra/package
mkdir bin
printf '#!/bin/sh\ncase $1 in -m) echo "${MACHINE#* }" ;; *) echo "$MACHINE" ;; esac\n' >bin/uname
# Ends make_package.sh after the machine is accepted, and prints the name of the archive.
printf '#!/bin/sh\nexit 9\n' >bin/cmake
for program in patchelf readelf strip; do printf '#!/bin/sh\n' >"bin/$program"; done
chmod +x bin/*
makes() { MACHINE=$1 PATH=$work/bin:$PATH bash -x "$scripts/make_package.sh" >log 2>&1; }

if makes 'Linux riscv64'; then fail "a processor without an archive is accepted"; fi
grep -qxF 'make_package.sh: [machine] expected Linux on x86_64 or aarch64, got Linux riscv64. hint: make the archive on a machine with the processor of the hosts.' \
  log || fail "the refusal is $(tail -n 1 log)"
for processor in x86_64 aarch64; do
  if makes "Linux $processor"; then fail "a failure of cmake is hidden"; fi
  grep -q "out=.*/tutti-[0-9.]*-linux-$processor.tar.gz" log || fail "no archive for $processor is made: $(tail -n 3 log)"
done

# setup.sh looks for the host's C library in the folder that the archive's programs name: /lib on aarch64, /lib64 on x86-64.
mkdir -p archive/bin archive/lib/tutti/c archive/share/tutti/package host
cp "$scripts/setup.sh" archive
printf '#!/bin/sh\n' >archive/bin/tutti-launch
printf '#!/bin/sh\necho "ld.so (Debian GLIBC 2.41) stable release version 2.41."\n' >host/ld-test.so.1
chmod +x archive/bin/tutti-launch host/ld-test.so.1
: >archive/share/tutti/package/interpreters
about() { printf '%s\n' "version 1" "c_library 2.36" "loader ld-test.so.1" "$@" "room 256" >archive/share/tutti/package/about; }
about "loader_folder $work/host"
[[ $(sh archive/setup.sh --c-library host) == *'with the C library 2.41 of the host' ]] || fail "the host's loader is not found"
# An archive of an older version has no folder: it is for x86-64.
about
if sh archive/setup.sh --c-library host 2>log; then fail "a loader that does not exist is used"; fi
grep -qF 'setup.sh: [--c-library] expected a C library of the host, 2.36 or later, got none.' log || fail "the refusal is $(<log)"
