#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests make_all.sh and build_twice.sh --target aarch64 on x86-64 with small programs in place of tutti's and a few Debian packages of this test in place
# of Debian's: names, tag, architecture, dependencies, libraries, bill of materials, and what the packages say on another processor.
# With qemu-user it also runs them. tests/packaging/aarch64_packages.sh makes and runs the real packages.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ $(uname -sm) == 'Linux x86_64' ]] || { echo "SKIP: it needs Linux on x86-64" && exit 77; }
for program in aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu dpkg-shlibdeps:dpkg-dev dpkg-deb:dpkg patchelf:patchelf python3:python3 cpack:cmake; do
  command -v "${program%:*}" >/dev/null || { echo "SKIP: no ${program%:*} (Debian: apt-get install ${program#*:})" && exit 77; }
done
scripts=$TUTTI_SOURCE_DIR/infra/package
export SOURCE_DATE_EPOCH=1700000000

# Two packages of arm64: a C library, and a library whose newest symbol has version 1.2. /opt/own has it, behind an absolute link.
package() { # package NAME VERSION LINES OF control...
  mkdir -p "debs/$1/DEBIAN" "debs/$1/usr/share/doc/$1"
  echo "licence of $1" >"debs/$1/usr/share/doc/$1/copyright"
  printf '%s\n' "Package: $1" "Version: $2" "Architecture: arm64" "Maintainer: test" "Description: test" "${@:3}" >"debs/$1/DEBIAN/control"
}
package libc6 2.99-1 "Source: glibc" "Multi-Arch: same"
mkdir -p debs/libc6/lib/aarch64-linux-gnu
for name in libc.so.6 ld-linux-aarch64.so.1; do
  cp -L "$(aarch64-linux-gnu-gcc -print-file-name=$name)" debs/libc6/lib/aarch64-linux-gnu
done
ln -s aarch64-linux-gnu/ld-linux-aarch64.so.1 debs/libc6/lib/ld-linux-aarch64.so.1
printf 'libc 6 libc6 (>= 2.17)\nld-linux-aarch64 1 libc6 (>= 2.17)\n' >debs/libc6/DEBIAN/shlibs
package libsmall1 1.5-2+b1 "Source: small (1.5-2)" "Multi-Arch: same"
mkdir -p debs/libsmall1/opt/own debs/libsmall1/usr/lib/aarch64-linux-gnu
echo 'int small(void) { return 3; } int smaller(void) { return 2; }' >small.c
aarch64-linux-gnu-gcc -shared -fPIC -Wl,-soname,libsmall.so.1 small.c -o debs/libsmall1/opt/own/libsmall.so.1.5
ln -s /opt/own/libsmall.so.1.5 debs/libsmall1/usr/lib/aarch64-linux-gnu/libsmall.so.1
printf 'libsmall.so.1 libsmall1 #MINVER#\n small@Base 1.2\n smaller@Base 1.0\n' >debs/libsmall1/DEBIAN/symbols
for name in libc6 libsmall1; do dpkg-deb --root-owner-group -b "debs/$name" "$name.deb" >/dev/null; done

# make_sysroot with a stand-in for apt-get, which "downloads" them.
mkdir bin
cat >bin/apt-get <<S
#!/bin/bash
echo "\$*" >>"$work/apt"
for word in "\$@"; do
  case \$word in
    Dir::Cache=*) cache=\${word#*=} ;;
    install) cp "$work"/*.deb "\$cache/archives" ;;
  esac
done
S
chmod +x bin/apt-get
sysroot() { (say() { echo "$*"; } && source "$scripts/sysroot.sh" && PATH=$work/bin:$PATH make_sysroot "$work/cross" libsmall1 && write_toolchain "$work/cross"); }
sysroot >log || fail "no sysroot: $(cat log)"
[[ $(wc -l <apt) == 2 && $(<apt) == *"APT::Architectures=arm64"* ]] || fail "apt-get ran with: $(<apt)"
sysroot >log && [[ $(wc -l <apt) == 2 && ! -s log ]] || fail "packages that are there are unpacked again"
[[ $(readlink cross/sysroot/usr/lib/aarch64-linux-gnu/libsmall.so.1) == ../../../opt/own/libsmall.so.1.5 ]] || fail "an absolute link leads out of the sysroot"
[[ $(dpkg-query --admindir=cross/sysroot/var/lib/dpkg -S libsmall.so.1.5 2>&1) == "libsmall1:arm64: /opt/own/libsmall.so.1.5" ]] || fail "dpkg-query does not find a file"
grep -qF "set(CMAKE_SYSROOT \"$work/cross/sysroot\")" cross/toolchain.cmake || fail "$(cat cross/toolchain.cmake)"

# A build folder: what scripts read of one of CMake.
mkdir -p build/tools files/bin files/share/tutti/plan files/share/doc/tutti
printf '#include <stdio.h>\nint small(void);\nint main(void) { return printf("small %%d\\n", small()) < 0; }\n' >main.c
aarch64-linux-gnu-gcc main.c debs/libsmall1/opt/own/libsmall.so.1.5 -o build/tools/tutti-launch
cp build/tools/tutti-launch build/tools/tutti-programs
for name in train_cifar10 train_imagenet tutti-train tutti-launch tutti-predict tutti-report tutti-export tutti-data; do cp build/tools/tutti-launch "files/bin/$name"; done
for name in tutti-plan prepare-data; do printf '#!/bin/sh\necho small\n' >"files/bin/$name" && chmod +x "files/bin/$name"; done
echo data >files/share/tutti/plan/data
printf 'small\t1.5\tMIT\tshared\t\tlibsmall1\n' >build/dependencies.tsv
printf '%s\n' "CMAKE_CXX_COMPILER:FILEPATH=aarch64-linux-gnu-g++" "TUTTI_SYSROOT:INTERNAL=$work/cross/sysroot" >build/CMakeCache.txt
cat >build/cmake_install.cmake <<C
if(CMAKE_INSTALL_COMPONENT STREQUAL "libraries")
  set(tutti_programs "$work/build/tools/tutti-launch")
  set(tutti_python "$(command -v python3)")
  set(tutti_sysroot "$work/cross/sysroot/")
  set(tutti_libraries_dir lib/tutti)
  include("$TUTTI_SOURCE_DIR/cmake/install_libraries.cmake")
else()
  file(INSTALL "$work/files/" DESTINATION "\${CMAKE_INSTALL_PREFIX}" USE_SOURCE_PERMISSIONS)
endif()
C
cat >build/CPackConfig.cmake <<C
set(CPACK_CMAKE_GENERATOR Ninja)
set(CPACK_PACKAGE_NAME small)
set(CPACK_PACKAGE_VERSION 1)
set(CPACK_PACKAGE_CONTACT test)
set(CPACK_PACKAGE_DESCRIPTION test)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY test)
set(CPACK_PACKAGE_FILE_NAME small-1-Linux-aarch64)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_CMAKE_PROJECTS "$work/build;small;ALL;/")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
set(CPACK_TUTTI_SYSROOT "$work/cross/sysroot")
set(CPACK_PROJECT_CONFIG_FILE "$TUTTI_SOURCE_DIR/cmake/package_options.cmake")
set(CPACK_POST_BUILD_SCRIPTS "$TUTTI_SOURCE_DIR/cmake/normalise_package.cmake")
C
"$scripts/build_twice.sh" --target aarch64 --build build --only deb,tgz,archive,wheel --keep twice 2>log || fail "packages are not made, or differ: $(cat log)"
[[ $(grep -c ' identical: ' log) == 4 ]] || fail "$(cat log)"
mv twice/first packages
version=$(sed -n 's/.*version = "\(.*\)";/\1/p' "$TUTTI_SOURCE_DIR/include/tutti/version.hpp")
want="small-1-Linux-aarch64.tar.gz small_1_arm64.deb tutti-$version-linux-aarch64.tar.gz tutti-$version-py3-none-linux_aarch64.whl "
[[ $(cut -c 67- packages/SHA256SUMS | tr '\n' ' ') == "$want" ]] || fail "other packages: $(<packages/SHA256SUMS)"
for line in "compiler aarch64-linux-gnu-g++" "libsmall1:arm64 1.5-2+b1"; do grep -qxF "$line" packages/BUILDINFO || fail "BUILDINFO lacks $line"; done
[[ $(dpkg-deb -f packages/small_1_arm64.deb Architecture) == arm64 ]] || fail "another architecture"
[[ $(dpkg-deb -f packages/small_1_arm64.deb Depends) == "libc6 (>= 2.17), libsmall1 (>= 1.2)" ]] || fail "depends on $(dpkg-deb -f packages/small_1_arm64.deb Depends)"

# The files of each package.
mkdir archive tgz wheel
tar -xzf "packages/tutti-$version-linux-aarch64.tar.gz" -C archive
tar -xzf packages/small-1-Linux-aarch64.tar.gz -C tgz
python3 -m zipfile -e packages/*.whl wheel
dpkg-deb -x packages/small_1_arm64.deb deb
count=0
while read -r file; do
  [[ $(head -c 4 "$file" | tail -c 3) == ELF ]] || continue
  count=$((count + 1))
  [[ $("$scripts/elf_libraries.py" --processor "$file") == aarch64 ]] || fail "$file is for another processor"
done < <(find archive tgz wheel deb -type f)
((count > 20)) || fail "only $count programs and libraries"
for folder in archive/tutti/lib/tutti tgz/*/lib/tutti wheel/tutti-*.data/data/lib/tutti/lib/tutti; do
  [[ -f $folder/libsmall.so.1 ]] || fail "$folder lacks the library"
done
[[ ! -e deb/usr/lib ]] || fail "the Debian package brings libraries"
[[ -f archive/tutti/lib/tutti/c/libc.so.6 && -f archive/tutti/lib/tutti/c/ld-linux-aarch64.so.1 ]] || fail "no C library"
grep -qxF "processor aarch64" archive/tutti/share/tutti/package/about || fail "$(cat archive/tutti/share/tutti/package/about)"
for bill in archive/tutti/share/doc/tutti/tutti.spdx.json wheel/tutti-*.dist-info/sboms/tutti.spdx.json; do
  grep -qF '"pkg:deb/debian/libsmall1@1.5-2+b1"' "$bill" || fail "$bill lacks the library"
done
[[ $(cat archive/tutti/share/doc/tutti/licences/libsmall1.txt wheel/tutti-*.dist-info/licenses/bundled/libsmall1.txt | sort -u) == "licence of libsmall1" ]] || fail "no licence"
grep -qxF "Tag: py3-none-linux_aarch64" wheel/tutti-*.dist-info/WHEEL || fail "$(cat wheel/tutti-*.dist-info/WHEEL)"

# On x86-64 they name the processor, in one line.
refused() { # refused STATUS LINE COMMAND...
  local status=0
  "${@:3}" >out 2>&1 || status=$?
  [[ $status == "$1" && $(<out) == "$2" ]] || fail "expected status $1 and \"$2\", got $status: $(cat out)"
}
refused 4 "setup.sh: [processor] expected aarch64, got x86_64. hint: take the archive for x86_64, or make it with make_package.sh on this machine." \
  sh archive/tutti/setup.sh
chmod +x wheel/tutti-*.data/scripts/*
for name in train_cifar10 tutti-launch tutti-plan; do
  refused 4 "$name: [processor] expected aarch64, got x86_64. hint: build tutti from its sources on this machine." wheel/tutti-*.data/scripts/"$name"
done
if pip=$(python3 -m pip --version 2>/dev/null) && [[ -n $pip ]]; then
  if python3 -m pip install --no-index --target "$work/installed" packages/*.whl >out 2>&1; then fail "pip installs a wheel for another processor"; fi
  grep -q 'is not a supported wheel on this platform' out || fail "pip: $(cat out)"
fi

# On aarch64, as far as emulation shows it.
printf '#!/bin/sh\necho aarch64\n' >bin/uname
chmod +x bin/uname
status=0
PATH=$work/bin:$PATH sh archive/tutti/setup.sh >out 2>&1 || status=$? # the last thing it does is to run a program
[[ $status == 0 || $status == 1 ]] || fail "setup.sh: $(cat out)"
if command -v qemu-aarch64-static >/dev/null; then
  [[ $(qemu-aarch64-static archive/tutti/bin/tutti-launch) == "small 3" ]] || fail "the archive's program does not run"
fi

# What is refused.
make=$scripts/make_package.sh
refused 2 "make_package.sh: [--build] expected programs for x86_64, got programs for aarch64. hint: give --target aarch64." bash -c '"$0" --build build 2>&1 | tail -n 1; exit "${PIPESTATUS[0]}"' "$make"
refused 2 "make_package.sh: [--target] expected x86_64 or aarch64, got riscv64." "$make" --target riscv64
refused 2 "make_package.sh: [--target] expected a value after it, got no value." "$make" --target
refused 2 "make_package.sh: [--cuda] expected an archive for the processor of this machine, got --target aarch64. hint: make it on a machine with that processor." \
  "$make" --target aarch64 --cuda 12
refused 2 "make_package.sh: [--native] expected an archive for the processor of this machine, got --target aarch64." "$make" --target aarch64 --native
refused 2 "make_all.sh: [--target] expected x86_64 or aarch64, got arm64." "$scripts/make_all.sh" --target arm64
refused 2 "wheel.py: [--target] expected x86_64 or aarch64, got riscv64." "$scripts/wheel.py" --target riscv64
refused 2 "wheel.py: [--native] expected a wheel for the processor of this machine, got --target aarch64." "$scripts/wheel.py" --target aarch64 --native
refused 2 "wheel.py: [--archive] expected an archive for x86_64, got packages/tutti-$version-linux-aarch64.tar.gz. hint: give --target the processor of the archive." \
  "$scripts/wheel.py" --build build --archive "packages/tutti-$version-linux-aarch64.tar.gz"
refused 2 "configure.sh: [--build] expected a folder, got none." "$scripts/configure.sh" --target aarch64
refused 2 "shlibdeps.sh: [TUTTI_SYSROOT] expected a folder that sysroot.sh has made, got $work." env TUTTI_SYSROOT="$work" "$scripts/shlibdeps.sh"
# A library that is missing in the sysroot, or is there for another processor only.
cp "$(type -P true)" cross/sysroot/opt/own/libsmall.so.1.5
if cmake --install build --prefix "$work/none" --component libraries >out 2>&1; then fail "a library for another processor is installed"; fi
grep -qF "elf_libraries.py: [libsmall.so.1] expected libraries for aarch64 below $work/cross/sysroot" out || fail "$(cat out)"
echo "all good"
