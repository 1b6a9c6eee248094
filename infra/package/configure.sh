#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Configures a build of the programs of packages. make_package.sh and wheel.py run it:
#   configure.sh [--target x86_64|aarch64] --build DIR [OPTION OF CMAKE]...
# --target  the processor of the programs; default: that of this machine. For aarch64 on x86-64 it needs Debian's cross compiler
#           (g++-aarch64-linux-gnu) and apt: it unpacks Debian's libraries of arm64 to build/package/aarch64/sysroot
# --build   the build folder
# Programs for aarch64 are built without oneDNN (backends/onednn/CMakeLists.txt).
set -euo pipefail
me=configure.sh
# shellcheck source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"
# shellcheck source=sysroot.sh
source "$root/infra/package/sysroot.sh"
build='' options=() generator=()
target=$(this_processor)
while (($#)); do
  case $1 in
    --target | --build)
      need_value "$1" "${2:-}"
      printf -v "${1#--}" %s "$2"
      shift
      ;;
    -D*) options+=("$1") ;;
    -h | --help) print_help && exit 0 ;;
    *) fail 2 arguments "--target, --build and options of CMake" "$1" ;;
  esac
  shift
done
check_target "$target"
[[ -n $build ]] || fail 2 --build "a folder" none
need_program cmake "cmake"
flags="\"-ffile-prefix-map=$root=.\""
if [[ $target != "$(this_processor)" ]]; then
  for program in aarch64-linux-gnu-g++ aarch64-linux-gnu-strip apt-get dpkg-deb; do
    need_program "$program" "g++-aarch64-linux-gnu" "for --target $target"
  done
  folder=$root/build/package/$target
  mkdir -p "$folder"
  make_sysroot "$folder" libc6-dev libstdc++-12-dev libeigen3-dev libcli11-dev libjpeg-dev libstb-dev libopenmpi-dev openmpi-bin \
    libzmq3-dev libgloo-dev libssl-dev >&2
  write_toolchain "$folder"
  # The compilers of this machine's Open MPI would name its own libraries.
  mpi=$folder/sysroot/usr/lib/aarch64-linux-gnu/openmpi
  options+=("-DCMAKE_TOOLCHAIN_FILE=$folder/toolchain.cmake" "-DMPI_CXX_LIB_NAMES=mpi_cxx;mpi" "-DMPI_mpi_cxx_LIBRARY=$mpi/lib/libmpi_cxx.so"
    "-DMPI_mpi_LIBRARY=$mpi/lib/libmpi.so" "-DMPI_CXX_COMPILER_INCLUDE_DIRS=$mpi/include")
  flags="-Wno-psabi $flags"
fi
if [[ ! -f $build/CMakeCache.txt ]] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
cmake -S "$root" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DTUTTI_BUILD_TESTS=OFF -DTUTTI_BUILD_BENCH=OFF \
  -DTUTTI_BUILD_EXAMPLES=ON -DTUTTI_EIGEN_NATIVE=OFF "-DCMAKE_CXX_FLAGS=$flags" "${options[@]}" >&2
