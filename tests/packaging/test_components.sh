#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# needs: stage
# Tests components: if the library of one is missing, find_package names the Debian package, and the build of tutti
# continues and prints one line about it. A component that does not exist is an error too.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
install_moved "$work/prefix"
hide=(-D CMAKE_DISABLE_FIND_PACKAGE_oneDNN=ON -D CMAKE_DISABLE_FIND_PACKAGE_Eigen3=ON
  -D CMAKE_DISABLE_FIND_PACKAGE_MPIC=ON -D CMAKE_DISABLE_FIND_PACKAGE_libjpegTurbo=ON -D CMAKE_DISABLE_FIND_PACKAGE_stb=ON
  -D CMAKE_DISABLE_FIND_PACKAGE_libzmq=ON -D CMAKE_DISABLE_FIND_PACKAGE_libgloo=ON
  -D CMAKE_DISABLE_FIND_PACKAGE_OpenSSL=ON)

try() {
  rm -rf "$work/build"
  cmake -S "$TUTTI_SOURCE_DIR/examples/downstream" -B "$work/build" -D "CMAKE_PREFIX_PATH=$work/prefix" "$@" \
    >"$work/log" 2>&1
}
says() { tr -s ' \n' ' ' <"$work/log" | grep -F -- "$1" >/dev/null || { cat "$work/log" && fail "it does not say: $1"; }; }

if try -D DOWNSTREAM_COMPONENTS=onednn "${hide[@]}"; then fail "a component without its library is found"; fi
says "apt-get install libdnnl-dev"
if try -D DOWNSTREAM_COMPONENTS=eigen "${hide[@]}"; then fail "a component without its library is found"; fi
says "apt-get install libeigen3-dev"
if try -D DOWNSTREAM_COMPONENTS=mpi "${hide[@]}"; then fail "a component without its library is found"; fi
says "apt-get install libopenmpi-dev"
if try -D DOWNSTREAM_COMPONENTS=turbojpeg "${hide[@]}"; then fail "a component without its library is found"; fi
says "apt-get install libjpeg-dev"
if try -D DOWNSTREAM_COMPONENTS=stb "${hide[@]}"; then fail "a component without its library is found"; fi
says "apt-get install libstb-dev"
if try -D DOWNSTREAM_COMPONENTS=zeromq "${hide[@]}"; then fail "a component without its library is found"; fi
says "apt-get install libzmq3-dev"
if try -D DOWNSTREAM_COMPONENTS=gloo "${hide[@]}"; then fail "a component without its library is found"; fi
says "apt-get install libgloo-dev"
if try -D DOWNSTREAM_COMPONENTS=openssl "${hide[@]}"; then fail "a component without its library is found"; fi
says "apt-get install libssl-dev"
if try -D DOWNSTREAM_COMPONENTS=nonesuch; then fail "a component that does not exist is found"; fi
says "no component 'nonesuch'"
try "${hide[@]}" || fail "tutti without components needs a library"

cmake -S "$TUTTI_SOURCE_DIR" -B "$work/own" "${hide[@]}" >"$work/log" 2>&1 || { cat "$work/log" && fail "no build without libraries"; }
says "component onednn is not built: no oneDNN (Debian: apt-get install libdnnl-dev)"
says "component eigen is not built: no Eigen3 (Debian: apt-get install libeigen3-dev)"
says "component mpi is not built: no MPIC (Debian: apt-get install libopenmpi-dev openmpi-bin)"

# The eigen component adds -march=native only if the option requests it.
if [[ $(components) == *eigen* ]]; then
  for choice in ON OFF; do
    try -D DOWNSTREAM_COMPONENTS=eigen -D TUTTI_EIGEN_NATIVE=$choice -D CMAKE_EXPORT_COMPILE_COMMANDS=ON || fail "no eigen"
    got=OFF
    if grep -q -e '-march=native' "$work/build/compile_commands.json"; then got=ON; fi
    [[ $got == "$choice" ]] || fail "TUTTI_EIGEN_NATIVE=$choice gives $got"
  done
fi
