# SPDX-License-Identifier: MIT
# Functions that unpack Debian's libraries of 64-bit ARM into a folder of their own, for Debian's cross compiler. configure.sh of this
# folder and tests/aarch64.sh source this file after `set -euo pipefail` and after they have defined say().
# shellcheck shell=bash

# describe_package SYSROOT FILE: adds what dpkg-query and dpkg-shlibdeps read about a package that is unpacked to SYSROOT.
describe_package() {
  local control=$1/DEBIAN/control multi='' file name
  mkdir -p "$1"/{DEBIAN,var/lib/dpkg/info,var/lib/dpkg/updates}
  echo 1 >"$1/var/lib/dpkg/info/format"
  dpkg-deb -e "$2" "$control"
  name=$(sed -n 's/^Package: //p' "$control/control")
  # dpkg names the files of these packages so.
  if grep -qx 'Multi-Arch: same' "$control/control"; then multi=:arm64; fi
  { printf 'Status: install ok installed\n' && cat "$control/control" && echo; } >>"$1/var/lib/dpkg/status"
  dpkg-deb --fsys-tarfile "$2" | tar -t | sed -e 's/^\.//' -e 's,/$,,' -e 's,^$,/.,' >"$1/var/lib/dpkg/info/$name$multi.list"
  for file in shlibs symbols; do
    [[ ! -f $control/$file ]] || cat "$control/$file" >>"$1/DEBIAN/$file"
  done
  rm -rf "$control"
}

# make_sysroot FOLDER PACKAGE...: unpacks the packages of arm64, with all packages that they depend on, to FOLDER/sysroot, unless it
# holds these packages already. FOLDER/sysroot/var/lib/dpkg describes them for `dpkg-query --admindir`, and FOLDER/sysroot/DEBIAN
# for dpkg-shlibdeps. apt has lists and a state of its own in FOLDER/apt, so the packages of this machine do not change.
make_sysroot() {
  local folder=$1 package link
  shift
  local sysroot=$folder/sysroot apt=$folder/apt
  if [[ -f $sysroot/complete && $(<"$sysroot/complete") == "$*" ]]; then return; fi
  say "unpacking libraries of arm64 to $sysroot"
  rm -rf "$sysroot" "$apt/cache"
  mkdir -p "$sysroot" "$apt/state/lists/partial" "$apt/cache/archives/partial"
  : >"$apt/status"
  local own=(-o "Dir::State=$apt/state" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache" -o Debug::NoLocking=true
    -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "APT::Sandbox::User=$(id -un)" -o APT::Install-Recommends=false)
  apt-get "${own[@]}" -qq update
  apt-get "${own[@]}" -qq -y --download-only install "$@" >"$apt/log"
  for package in "$apt"/cache/archives/*.deb; do
    dpkg-deb -x "$package" "$sysroot"
    describe_package "$sysroot" "$package"
  done
  rm -rf "$apt/cache"
  # The linker would follow an absolute link to a library of this machine.
  find "$sysroot" -type l -lname '/*' -print0 | while IFS= read -r -d '' link; do
    ln -sfnr "$sysroot$(readlink "$link")" "$link"
  done
  echo "$*" >"$sysroot/complete"
}

# write_toolchain FOLDER: writes FOLDER/toolchain.cmake, which lets CMake compile for FOLDER/sysroot.
write_toolchain() {
  cat >"$1/toolchain.new" <<END
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CXX_FLAGS_INIT -Wno-psabi)
set(CMAKE_SYSROOT "$1/sysroot")
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L "$1/sysroot")
set(CMAKE_FIND_ROOT_PATH "$1/sysroot")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
END
  if cmp -s "$1/toolchain.new" "$1/toolchain.cmake"; then rm "$1/toolchain.new"; else mv "$1/toolchain.new" "$1/toolchain.cmake"; fi
}
