#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests packages that are made twice: make_all.sh, build_twice.sh and normalise.sh. The signature that docs/how-to/install.md
# describes is made and checked, and a changed file is found. With TUTTI_CHECK_ALL=1 all kinds of packages are made twice.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
scripts=$TUTTI_SOURCE_DIR/infra/package
only=headers
if [[ ${TUTTI_CHECK_ALL:-} == 1 ]]; then only=deb,tgz,archive,headers; fi
"$scripts/build_twice.sh" --build "$TUTTI_BUILD_DIR" --native --only "$only" --keep packages 2>log || fail "packages differ: $(cat log)"
grep -q "identical: tutti-.*-headers.tar.gz" log || fail "$(cat log)"
grep -q "^commit " packages/first/BUILDINFO || fail "no commit in BUILDINFO"
grep -q "^compiler version " packages/first/BUILDINFO || fail "no compiler in BUILDINFO"

# No program contains a folder of this machine.
for program in "$TUTTI_BUILD_DIR"/examples/train_* "$TUTTI_BUILD_DIR"/tools/tutti-* "$TUTTI_BUILD_DIR/tools/generate-trainer"; do
  [[ -x $program && -f $program ]] || continue
  if grep -qaF -e "$TUTTI_SOURCE_DIR/" -e "$TUTTI_BUILD_DIR/" "$program"; then fail "$program contains folders of this machine"; fi
done

# Two packages with the same files, made in another order, by another umask and at another time.
export SOURCE_DATE_EPOCH=1700000000
for number in 1 2; do
  mkdir -p "$number/tutti-1-Linux/bin" "$number/deb/DEBIAN" "$number/deb/usr/bin"
  for name in a b c; do
    if ((number == 2)); then name=$(tr abc cba <<<"$name"); fi
    echo "program $name" >"$number/tutti-1-Linux/bin/$name"
    cp "$number/tutti-1-Linux/bin/$name" "$number/deb/usr/bin"
    touch -d "@$((number * 1000000))" "$number/tutti-1-Linux/bin/$name" "$number/deb/usr/bin/$name"
    if ((number == 2)); then chmod 775 "$number"/*/{,usr/}bin/"$name" 2>/dev/null || true; else chmod 755 "$number"/*/{,usr/}bin/"$name" 2>/dev/null || true; fi
  done
  printf 'Package: tutti\nVersion: 1\nArchitecture: all\nMaintainer: The tutti authors\nDescription: test\n' >"$number/deb/DEBIAN/control"
  (cd "$number/deb" && find usr -type f -exec md5sum {} +) >"$work/sums"
  sort -R "$work/sums" >"$number/deb/DEBIAN/md5sums"
  tar -C "$number" -czf "$number/it.tar.gz" tutti-1-Linux
  "$scripts/normalise.sh" "$number/it.tar.gz" || fail "normalise.sh fails"
  if command -v dpkg-deb >/dev/null; then
    dpkg-deb -b "$number/deb" "$number/it.deb" >/dev/null
    "$scripts/normalise.sh" "$number/it.deb" || fail "normalise.sh fails"
  fi
done
cmp 1/it.tar.gz 2/it.tar.gz || fail "archives of the same files differ"
[[ ! -f 1/it.deb ]] || cmp 1/it.deb 2/it.deb || fail "Debian packages of the same files differ"
[[ $(tar -tvzf 1/it.tar.gz | grep 'bin/a') == "-rwxr-xr-x 0/0 "*" 2023-11-14 "* ]] || fail "$(tar -tvzf 1/it.tar.gz)"
unset SOURCE_DATE_EPOCH

# The blocks of the page, with a key of this test.
if command -v ssh-keygen >/dev/null; then
  ssh-keygen -q -t ed25519 -N '' -C test -f key
  echo "tutti-release namespaces=\"tutti-release\" $(cut -d ' ' -f 1,2 key.pub)" >packages/allowed_signers
  sed -n '/^<!-- not run: tests\/packaging\/test_make_all.sh runs it with a key/,/^```$/p' "$TUTTI_SOURCE_DIR/docs/how-to/install.md" |
    grep -v -e '^```' -e '^<!--' -e '^$' >steps
  [[ $(grep -c ssh-keygen steps) == 2 ]] || fail "install.md has other steps: $(cat steps)"
  mkdir release && cp -r packages/first release/packages && cp packages/allowed_signers release
  sed -i 's/^cd packages$/cd "$PACKAGES"/' steps
  PACKAGES=$work/release/packages KEY=$work/key bash -euo pipefail steps >log 2>&1 || fail "the steps of install.md: $(cat log)"
  grep -q 'Good "tutti-release" signature' log || fail "$(cat log)"
  sed -n '/verify/,$p' steps >check
  check() { (cd release/packages && bash -euo pipefail "$work/check") >log 2>&1; }
  check || fail "checking again fails: $(cat log)"
  echo >>"$(echo release/packages/*headers.tar.gz)"
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
if stand/infra/package/build_twice.sh --build stand 2>log; then fail "different packages are called identical"; fi
grep -q "different: package" log || fail "$(cat log)"

for arguments in "--only" "--only rpm" "--what" "--out $work/packages"; do
  # shellcheck disable=SC2086 # words
  if "$scripts/make_all.sh" $arguments 2>log; then fail "make_all.sh $arguments is accepted"; fi
  grep -qE '^make_all.sh: \[(--only|arguments|--out)\] expected' log || fail "$(cat log)"
done
if "$scripts/build_twice.sh" --keep "$work/packages" 2>log; then fail "a folder with files is accepted"; fi
echo "all good"
