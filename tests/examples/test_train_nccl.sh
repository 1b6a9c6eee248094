#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# waits
# Tests --strategy nccl and --backend cuda on a machine without a GPU: for each missing part the program prints one line
# and ends with 4, alone, under tutti-launch and under mpirun. A stand-in library replaces a driver that is too old.
set -uo pipefail
build=${TUTTI_BUILD_DIR:?}
program=$build/examples/train_cifar10
if [[ ! -x $program ]]; then
  echo "SKIP: no $program; the examples or CLI11 are missing"
  exit 77
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
unset TUTTI_DATA TUTTI_RANK TUTTI_SIZE TUTTI_ROOT TUTTI_JOB
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
tiny=(--dataset synthetic --num-examples 64 --image-shape "3,16,16" --network resnet_postact --depth 8 --batch-size 16 --epochs 1
  --threads 1)
failures=0
complain() {
  echo "FAILED: $*"
  sed 's/^/  | /' out | head -n 20
  failures=$((failures + 1))
}
# expect STATUS TEXT WHAT COMMAND...: checks the command's status and one separate line of its output.
expect() {
  local want=$1 text=$2 what=$3
  shift 3
  timeout --kill-after=5 120 "$@" >out 2>&1
  local status=$?
  [[ $status == "$want" ]] || complain "$what: status $status and not $want"
  grep -qF -- "$text" out || complain "$what: it does not say '$text'"
}
one_line() { [[ $(wc -l <out) == 1 ]] || complain "$1: not one line"; }

has() { grep -qaF -- "$1" "$program"; } # succeeds if the program contains the text
if has "an NVIDIA driver" && has "to join NCCL"; then
  if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep '^GPU ' >/dev/null; then
    echo "SKIP: there is a GPU"
    exit 77
  fi
  for arguments in "--backend cuda" "--strategy nccl" "--kv-store nccl" "--backend cuda --strategy nccl"; do
    # shellcheck disable=SC2086
    expect 4 "expected an NVIDIA driver" "$arguments" "$program" "${tiny[@]}" $arguments
    one_line "$arguments"
  done
  expect 2 "[--backend] expected cuda" "nccl on the processor" "$program" "${tiny[@]}" --strategy nccl --backend eigen
  expect 2 "[--gpus] expected numbers" "invalid GPU numbers" "$program" "${tiny[@]}" --backend cuda --gpus 0,0
  expect 2 "[--gpus] expected no GPUs" "GPUs without cuda" "$program" "${tiny[@]}" --gpus 0
  # Without a driver the automatic choice is the CPU.
  expect 0 "done:" "auto" "$program" "${tiny[@]}" --run-dir auto
  if grep -q "backend cuda" out; then complain "auto took cuda"; fi
  launch=$build/tools/tutti-launch
  if [[ -x $launch ]]; then
    expect 4 "expected an NVIDIA driver" "under tutti-launch" "$launch" -n 2 "$program" "${tiny[@]}" --backend cuda
    expect 2 "[--strategy] expected nccl" "mpi over GPUs" "$launch" -n 2 "$program" "${tiny[@]}" --backend cuda --strategy mpi
  fi
  if command -v mpirun >/dev/null; then
    expect 4 "expected an NVIDIA driver" "under mpirun" mpirun --oversubscribe --bind-to none -np 2 "$program" \
      "${tiny[@]}" --backend cuda
  fi
  for other in "tutti_step --backend cuda" "allreduce --comm nccl"; do
    # shellcheck disable=SC2086
    [[ ! -x $build/bench/${other%% *} ]] || { expect 4 "expected an NVIDIA driver" "$other" "$build"/bench/$other && one_line "$other"; }
  done
  # A driver with a version of the year 2021: the runtime asks for its functions, and then for its version.
  cat >old.cpp <<'EOF'
#include <cstring>
extern "C" {
int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* v) { return *v = 11040, 0; }
int nothing() { return 999; }
int cuGetProcAddress_v2(const char* name, void** p, int, unsigned long long, int* found) {
  const auto is = [&](const char* other) { return std::strcmp(name, other) == 0; };
  *p = reinterpret_cast<void*>(&nothing);
  if (is("cuInit")) *p = reinterpret_cast<void*>(&cuInit);
  if (is("cuDriverGetVersion")) *p = reinterpret_cast<void*>(&cuDriverGetVersion);
  if (is("cuGetProcAddress")) *p = reinterpret_cast<void*>(&cuGetProcAddress_v2);
  if (found != nullptr) *found = 0;
  return 0;
}
}
EOF
  if "${TUTTI_CXX:-c++}" -shared -fPIC -o libcuda.so.1 old.cpp 2>out; then
    LD_LIBRARY_PATH=$work${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
      expect 4 "a driver for CUDA 11.4" "an old driver" "$program" "${tiny[@]}" --backend cuda
    one_line "an old driver"
    grep -q "update the NVIDIA driver" out || complain "an old driver: no hint"
  else
    complain "no library of an old driver"
  fi
else
  # A build without CUDA or NCCL prints what to install.
  has "an NVIDIA driver" || expect 2 "install the CUDA toolkit" "no cuda" "$program" "${tiny[@]}" --backend cuda
  expect 2 "NCCL (libnccl2 and libnccl-dev)" "no nccl" "$program" "${tiny[@]}" --strategy nccl
  echo "a build without CUDA or without NCCL"
fi
((failures == 0))
