#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests packages that are made twice: make_all.sh, build_twice.sh and normalise.sh. The signature that docs/how-to/install.md
# describes is made and checked, and a changed file is found. The packages are those of a small program, and with
# TUTTI_CHECK_ALL=1 those of the build.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
scripts=$TUTTI_SOURCE_DIR/infra/package
mkdir -p small/files/bin
printf '#!/bin/sh\nexit 0\n' >small/files/bin/small
echo "CMAKE_CXX_COMPILER:FILEPATH=$CXX" >small/CMakeCache.txt
cat >small/CPackConfig.cmake <<C
set(CPACK_PACKAGE_NAME small)
set(CPACK_PACKAGE_VERSION 1)
set(CPACK_PACKAGE_CONTACT test)
set(CPACK_PACKAGE_DESCRIPTION test)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY test)
set(CPACK_PACKAGE_FILE_NAME small-1-Linux)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALLED_DIRECTORIES "$work/small/files;.")
set(CPACK_POST_BUILD_SCRIPTS "$TUTTI_SOURCE_DIR/cmake/normalise_package.cmake")
C
build=$work/small only=tgz
if command -v dpkg-deb >/dev/null; then only+=,deb; fi
if [[ ${TUTTI_CHECK_ALL:-} == 1 ]]; then build=$TUTTI_BUILD_DIR only=deb,tgz,archive,wheel; fi
"$scripts/build_twice.sh" --build "$build" --native --only "$only" --keep packages 2>log || fail "packages differ: $(cat log)"
[[ $(grep -c "identical: .*\.\(deb\|tar\.gz\|whl\), " log) == $(tr , '\n' <<<"$only" | wc -l) ]] || fail "$(cat log)"
grep -q "^commit " packages/first/BUILDINFO || fail "no commit in BUILDINFO"
grep -q "^compiler version " packages/first/BUILDINFO || fail "no compiler in BUILDINFO"

# BUILDINFO names the compiler of the build, and the commit.
mkdir -p tree/include/tutti tree/infra tree/cmake
cp -r "$scripts" tree/infra
cp "$TUTTI_SOURCE_DIR/include/tutti/version.hpp" tree/include/tutti
says() {
  rm -rf said
  tree/infra/package/make_all.sh --build small --only tgz --out said 2>log || fail "make_all.sh fails: $(cat log)"
  grep -qx -e "$1" said/BUILDINFO || fail "BUILDINFO lacks \"$1\": $(head -n 4 said/BUILDINFO)"
}
says "commit unknown"
says "compiler $CXX"
if command -v git >/dev/null; then
  git -c init.defaultBranch=main init -q tree
  git -C tree add -A
  git -C tree -c user.name=test -c user.email=test@localhost -c commit.gpgSign=false commit -qm "The tree"
  commit=$(git -C tree rev-parse HEAD)
  says "commit $commit"
  touch tree/include/tutti/new.hpp
  says "commit $commit with changes"
  rm tree/include/tutti/new.hpp
  echo >>tree/include/tutti/version.hpp
  says "commit $commit with changes"
fi

# No program contains a folder of this machine, except in its debug information.
printf 'a\0/folder/of-this.machine/main.cpp\0' >contains
printf '/other/folder/of-this.machine ../folder/of-this.machine /folder/of-this_machine /folder/of-this.machines\n' >contains-not
[[ $(names_folder /folder/of-this.machine contains contains-not) == contains ]] || fail "names_folder finds other files"
for program in "$TUTTI_BUILD_DIR"/examples/train_* "$TUTTI_BUILD_DIR"/tools/tutti-* "$TUTTI_BUILD_DIR/tools/generate-trainer"; do
  # Sanitizers write the names of source files.
  [[ -x $program && -f $program && -z ${TUTTI_SANITIZE:-} ]] || continue
  for folder in "$TUTTI_SOURCE_DIR" "$TUTTI_BUILD_DIR"; do
    names_folder "$folder" "$program" >/dev/null || continue
    strip -o stripped "$program" || fail "$program contains $folder and cannot be stripped"
    if names_folder "$folder" stripped; then fail "$program contains $folder"; fi
  done
done

# Two packages with the same files, made in another order, by another umask, at another time and in another language.
export SOURCE_DATE_EPOCH=1700000000
language=$(locale -a 2>/dev/null | grep -vE '^(C|POSIX)(\.|$)' | head -n 1 || true)
languages=(- C "${language:-C.UTF-8}")
for number in 1 2; do
  mkdir -p "$number/tutti-1-Linux/bin" "$number/deb/DEBIAN" "$number/deb/usr/bin"
  for name in a B c; do
    if ((number == 2)); then name=$(tr ac ca <<<"$name"); fi
    echo "program $name" >"$number/tutti-1-Linux/bin/$name"
    cp "$number/tutti-1-Linux/bin/$name" "$number/deb/usr/bin"
    touch -d "@$((number * 1000000))" "$number/tutti-1-Linux/bin/$name" "$number/deb/usr/bin/$name"
    if ((number == 2)); then chmod 775 "$number"/*/{,usr/}bin/"$name" 2>/dev/null || true; else chmod 755 "$number"/*/{,usr/}bin/"$name" 2>/dev/null || true; fi
  done
  printf 'Package: tutti\nVersion: 1\nArchitecture: all\nMaintainer: The tutti authors\nDescription: test\n' >"$number/deb/DEBIAN/control"
  (cd "$number/deb" && find usr -type f -exec md5sum {} +) >"$work/sums"
  sort -R "$work/sums" >"$number/deb/DEBIAN/md5sums"
  tar -C "$number" -czf "$number/it.tar.gz" tutti-1-Linux
  LC_ALL=${languages[number]} "$scripts/normalise.sh" "$number/it.tar.gz" || fail "normalise.sh fails"
  if command -v dpkg-deb >/dev/null; then
    dpkg-deb -b "$number/deb" "$number/it.deb" >/dev/null
    LC_ALL=${languages[number]} "$scripts/normalise.sh" "$number/it.deb" || fail "normalise.sh fails"
  fi
done
cmp 1/it.tar.gz 2/it.tar.gz || fail "archives of the same files differ"
[[ ! -f 1/it.deb ]] || cmp 1/it.deb 2/it.deb || fail "Debian packages of the same files differ"
[[ $(TZ=UTC tar -tvzf 1/it.tar.gz | grep 'bin/a') == "-rwxr-xr-x 0/0 "*" 2023-11-14 "* ]] || fail "$(tar -tvzf 1/it.tar.gz)"
unset SOURCE_DATE_EPOCH

# The blocks of the page, with a key of this test.
if ! command -v ssh-keygen >/dev/null; then
  echo "signatures not tested: no ssh-keygen (Debian: apt-get install openssh-client)"
elif ! getent passwd "$(id -u)" >/dev/null; then
  echo "signatures not tested: ssh-keygen needs an entry for user $(id -u) in /etc/passwd"
else
  ssh-keygen -q -t ed25519 -N '' -C test -f key
  echo "tutti-release namespaces=\"tutti-release\" $(cut -d ' ' -f 1,2 key.pub)" >packages/allowed_signers
  sed -n '/^<!-- not run: tests\/packaging\/test_make_all.sh runs it with a key/,/^```$/p' "$TUTTI_SOURCE_DIR/docs/how-to/install.md" |
    grep -v -e '^```' -e '^<!--' -e '^$' >steps
  [[ $(grep -c ssh-keygen steps) == 2 ]] || fail "install.md has other steps: $(cat steps)"
  mkdir release && cp -r packages/first release/packages && cp packages/allowed_signers release
  # shellcheck disable=SC2016 # the steps expand it
  sed -i 's/^cd packages$/cd "$PACKAGES"/' steps
  PACKAGES=$work/release/packages KEY=$work/key bash -euo pipefail steps >log 2>&1 || fail "the steps of install.md: $(cat log)"
  grep -q 'Good "tutti-release" signature' log || fail "$(cat log)"
  sed -n '/verify/,$p' steps >check
  check() { (cd release/packages && bash -euo pipefail "$work/check") >log 2>&1; }
  check || fail "checking again fails: $(cat log)"
  for package in release/packages/*.tar.gz; do echo >>"$package"; done
  if check; then fail "a changed package is accepted"; fi
  echo >>release/packages/SHA256SUMS
  if check; then fail "changed checksums are accepted"; fi
fi

# Packages that differ are found: a stand-in for the tree, whose second archive has another byte.
mkdir -p stand/infra/package stand/include/tutti
cp "$scripts/build_twice.sh" "$scripts/common.sh" stand/infra/package
cat >stand/infra/package/make_all.sh <<'S'
#!/bin/bash
mkdir -p "$2" && echo "$2" >"$2/package" && (cd "$2" && sha256sum package >SHA256SUMS) && echo same >"$2/BUILDINFO"
S
chmod +x stand/infra/package/make_all.sh
touch stand/CMakeCache.txt
if stand/infra/package/build_twice.sh --build stand 2>log; then fail "different packages are called identical"; fi
grep -q "different: package" log || fail "$(cat log)"

for arguments in "--only" "--only rpm" "--what" "--out $work/packages"; do
  # shellcheck disable=SC2086 # words
  if "$scripts/make_all.sh" $arguments 2>log; then fail "make_all.sh $arguments is accepted"; fi
  grep -qE '^make_all.sh: \[(--only|arguments|--out)\] expected' log || fail "$(cat log)"
done
if "$scripts/build_twice.sh" --keep "$work/packages" 2>log; then fail "a folder with files is accepted"; fi
for script in make_all build_twice; do
  status=0
  "$scripts/$script.sh" --build none 2>log || status=$?
  [[ $status == 2 ]] || fail "$script.sh --build none ends with $status: $(cat log)"
  grep -qF "$script.sh: [--build] expected a folder that CMake has configured, got none" log || fail "$(cat log)"
done
echo "all good"
