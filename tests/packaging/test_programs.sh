#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# takes long
# needs: stage
# Tests that installed programs and scripts that were moved find each other. The Debian package depends on the libraries
# that they link. The archive with its shared libraries runs on a system that only has a C library.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
programs=(tutti-launch tutti-check-audit tutti-report generate-trainer)
for program in train_cifar10 train_imagenet; do
  [[ ! -x $TUTTI_BUILD_DIR/examples/$program ]] || programs+=("$program")
done
for program in tutti-data tutti-train; do
  [[ ! -x $TUTTI_BUILD_DIR/tools/$program ]] || programs+=("$program")
done
prefix="$work/pre fix"
install_moved "$prefix"

for program in "${programs[@]}"; do
  "$prefix/bin/$program" --help >log || fail "the installed $program does not run"
  if readelf -d "$prefix/bin/$program" | grep -E 'RPATH|RUNPATH' | grep -vF '[$ORIGIN/../lib/tutti]'; then
    fail "the installed $program looks for libraries elsewhere"
  fi
done
[[ $("$prefix/bin/prepare-data" --help) == *"usage: prepare-data"* ]] || fail "the installed prepare-data does not run"

# The scripts find each other, and the program that was installed with them, through a link.
mkdir fakes
printf '#!/bin/sh\necho "$@"\n' | tee fakes/ssh fakes/mpirun >/dev/null
chmod +x fakes/*
echo "localhost slots=2" >hosts
[[ $(PATH="$work/fakes:$PATH" "$prefix/bin/runclust" hosts "some command") == *"localhost some command" ]] || fail "runclust fails"
status=0
"$prefix/bin/copyclust" 2>/dev/null || status=$?
[[ $status == 1 ]] || fail "copyclust ends with $status"
if [[ " ${programs[*]} " == *" train_imagenet "* ]]; then
  for script in train_synthetic.sh train.sh train_more_aug.sh; do
    PATH="$work/fakes:/usr/bin:/bin" "$prefix/share/tutti/scripts/$script" 2 >log 2>&1 || fail "$script: $(cat log)"
    grep -qF "$prefix/bin/train_imagenet" log || fail "$script does not find the installed train_imagenet: $(cat log)"
  done
fi

# pack KIND: makes a package in the folder packages.
pack() {
  if ! cpack --config "$TUTTI_BUILD_DIR/CPackConfig.cmake" -B "$work/packages" -G "$1" >log 2>&1; then
    cat log
    fail "cpack -G $1 fails"
  fi
}
if command -v dpkg-shlibdeps >/dev/null; then
  pack DEB
  package=$(echo "$work"/packages/*.deb)
  depends=$(dpkg-deb -f "$package" Depends)
  wanted=(libc6)
  if ldd "$TUTTI_BUILD_DIR/examples/train_cifar10" 2>/dev/null | grep libdnnl >/dev/null; then wanted+=(libdnnl); fi
  if ldd "$TUTTI_BUILD_DIR/examples/train_cifar10" 2>/dev/null | grep libmpi >/dev/null; then wanted+=(libopenmpi); fi
  for want in "${wanted[@]}"; do
    [[ $depends == *$want* ]] || fail "the Debian package does not depend on $want but on: $depends"
  done
  dpkg-deb -x "$package" unpacked
  for program in "${programs[@]}"; do "unpacked/usr/bin/$program" --help >log || fail "$program of the Debian package does not run"; done
  if [[ -e unpacked/usr/lib/tutti ]]; then fail "the Debian package brings libraries of other packages"; fi
  # dpkg installs the package if the packages that it needs are installed, and removes it again. Otherwise dpkg refuses
  # it.
  as_root=()
  ((EUID == 0)) || as_root=(unshare --user --map-root-user)
  if "${as_root[@]}" true 2>/dev/null; then
    name=$(dpkg-deb -f "$package" Package)
    mkdir -p none/updates none/info host root
    touch none/status
    cp -r /var/lib/dpkg/. host 2>/dev/null || [[ -s host/status ]] # an ordinary user cannot read the locks
    rm -f host/lock*
    # in_root DATABASE ARGUMENT...: runs dpkg with this database on files in the folder root. It runs no triggers,
    # because they belong to other packages.
    in_root() {
      local database=$1
      shift
      PATH=/usr/sbin:/sbin:$PATH "${as_root[@]}" dpkg --log=dpkg.log --admindir="$work/$database" --instdir="$work/root" --no-triggers "$@" >log 2>&1
    }
    if in_root none -i "$package"; then fail "dpkg installs the Debian package where nothing is"; fi
    grep -q "depends on libc6" log || fail "dpkg refuses the Debian package for another reason: $(cat log)"
    rm -rf root && mkdir root
    in_root host -i "$package" || fail "dpkg does not install the Debian package: $(tail -n 5 log)"
    [[ $(dpkg-query --admindir="$work/host" -W -f '${Status} ${Version}' "$name") == "install ok installed $(dpkg-deb -f "$package" Version)" ]] ||
      fail "dpkg has not installed the Debian package: $(dpkg-query --admindir="$work/host" -W "$name")"
    dpkg-query --admindir="$work/host" -L "$name" >listed
    for program in "${programs[@]}"; do
      grep -qx "/usr/bin/$program" listed || fail "the Debian package has no $program: $(cat listed)"
      "root/usr/bin/$program" --help >log || fail "$program does not run as dpkg installs it"
    done
    in_root host --verify "$name" || fail "dpkg finds other files than it installed: $(cat log)"
    in_root host -r "$name" || fail "dpkg does not remove the Debian package: $(tail -n 5 log)"
    [[ -z $(find root -type f -o -type l) ]] || fail "the Debian package leaves files behind: $(find root -type f -o -type l | head -n 5)"
  else
    echo "no user namespaces: the Debian package was not installed"
  fi
fi

pack TGZ
mkdir bare
tar -xzf "$work"/packages/*.tar.gz -C bare --strip-components 1
mkdir -p bare/tmp bare/lib bare/lib64
of_c=$(dirname "$(ldd "$TUTTI_BUILD_DIR/tools/tutti-launch" | sed -n 's/.*libc\.so\.6 => \([^ ]*\) .*/\1/p')")
for library in libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1 libutil.so.1 libresolv.so.2; do
  [[ ! -e $of_c/$library ]] || cp -L "$of_c/$library" bare/lib
done
cp -L "$(readelf -l /bin/sh | sed -n 's/.*interpreter: \(.*\)\]/\1/p')" bare/lib64
# Uses a separate mount namespace with /proc, from which the loader knows the path of a program.
mkdir bare/proc
isolate=(unshare --mount)
((EUID == 0)) || isolate+=(--user --map-root-user)
if ! "${isolate[@]}" true 2>/dev/null; then
  echo "SKIP: no namespaces, which take root or a setting: the archive was not run"
  exit 77
fi
# bare PROGRAM ARGUMENT...: runs a program in this namespace
bare() { "${isolate[@]}" sh -c 'mount --rbind /proc bare/proc && exec chroot bare "$@"' _ "$@" >log 2>&1; }
for program in "${programs[@]}"; do
  bare "/bin/$program" --help || fail "$program of the archive does not run on a bare host: $(cat log)"
done
if [[ " ${programs[*]} " == *" train_cifar10 "* ]]; then
  bare /bin/train_cifar10 --dataset synthetic --num-examples 96 --image-shape 3,16,16 \
    --depth 8 --batch-size 32 --max-steps 1 --run-dir /tmp/run ||
    fail "train_cifar10 of the archive does not train on a bare host: $(cat log)"
fi
