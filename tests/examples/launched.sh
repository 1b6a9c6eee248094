# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# The tests of train_cifar10 under tutti-launch source this file. launched STRATEGY PACKAGE skips the test if the build
# lacks the strategy. Otherwise it changes to a new folder.
# shellcheck disable=SC2034
program=${TUTTI_BUILD_DIR:?}/examples/train_cifar10
launch=$TUTTI_BUILD_DIR/tools/tutti-launch
tiny=(--dataset synthetic --num-examples 101 --image-shape "3,16,16" --depth 8 --batch-size 16 --threads 1 --seed 3
  --disp-batches 1)
failures=0
complain() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
launched() {
  local each
  for each in "$program" "$launch"; do
    [[ -x $each ]] || { echo "SKIP: no $each; CLI11 is missing" && exit 77; }
  done
  "$program" --strategy "$1" 2>&1 | grep "install $2" >/dev/null && { echo "SKIP: a build without it (Debian: $2)" && exit 77; }
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  unset TUTTI_DATA GLOO_SOCKET_IFNAME
  work=$(mktemp -d)
  export TUTTI_STATE_DIR=$work/state
  trap 'rm -rf "$work"' EXIT
  cd "$work" || exit 1
}
