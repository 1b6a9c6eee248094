#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests quickstart.sh with programs that are already built, on a few images: it trains, and the commands that it prints
# at the end run unchanged.
set -euo pipefail
: "${TUTTI_SOURCE_DIR:?}" "${TUTTI_BUILD_DIR:?}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root="$work/a clone"
fail() {
  echo "FAILED: $*"
  exit 1
}
mapfile -t programs < <(sed -n 's/^programs=(\(.*\))$/\1/p' "$TUTTI_SOURCE_DIR/quickstart.sh" | tr ' ' '\n')
((${#programs[@]} == 5)) || fail "quickstart.sh builds ${programs[*]}"
for program in "${programs[@]}"; do
  [[ -x $TUTTI_BUILD_DIR/examples/$program || -x $TUTTI_BUILD_DIR/tools/$program ]] || { echo "SKIP: $program is not built" && exit 77; }
done
# A tree with a finished build, in a folder with a space, so that the script installs no package and compiles no file.
mkdir -p "$root/.ci" "$work/bin"
cp "$TUTTI_SOURCE_DIR/quickstart.sh" "$root/"
ln -s "$TUTTI_BUILD_DIR" "$root/build"
cat >"$root/.ci/common.sh" <<'SH'
say() { printf '%s: %s\n' "$me" "$*"; }
install() { :; }
configure() { :; }
SH
printf '#!/bin/sh\necho "$@" >>%q\n' "$work/cmake.log" >"$work/bin/cmake"
chmod +x "$work/bin/cmake"
# CIFAR-10 with black images of class 0, as sparse files.
mkdir "$root/data"
for name in data_batch_{1..5} test_batch; do truncate -s 30730000 "$root/data/$name.bin"; done
cd "$work"
PATH=$work/bin:$PATH TUTTI_DATA='' "$root/quickstart.sh" --depth 8 --epochs 1 --num-examples 64 --batch-size 32 --evaluation-batch 1000 --threads 2 >out 2>&1 || fail "$(tail -n 5 out)"
grep -q "test accuracy [01]" out || fail "no accuracy: $(tail -n 5 out)"
grep -q -- "--target train_cifar10 tutti-report tutti-predict save_images train_imagenet" cmake.log || fail "it builds: $(cat cmake.log)"
mapfile -t commands < <(sed -n '/test accuracy/,$s/^  //p' out)
((${#commands[@]} == 3)) || fail "not three commands at the end: $(tail -n 12 out)"
"$root/build/examples/save_images" images 8
for command in "${commands[@]}"; do
  # A few epochs are enough.
  bash -c "$command$([[ $command == *train_imagenet* ]] && echo " --num-epochs 1 --warmup-epochs 0")" >said 2>&1 || fail "$command: $(tail -n 5 said)"
  case $command in
    *tutti-report*) [[ -s $(echo "$root"/runs/*/report.html) ]] || fail "no report: $(cat said)" ;;
    *tutti-predict*) (($(grep -c 'test-[012]-.*\.png' said) == 3)) || fail "not three predictions: $(cat said)" ;;
    *) grep -q "32 training and 8 test images" said || fail "no training: $(cat said)" ;;
  esac
done
echo "all good"
