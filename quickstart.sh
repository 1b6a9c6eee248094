#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what is missing, builds, finds data, trains a ResNet-20 and prints its test accuracy.
#   ./quickstart.sh [--data DIR] [options of train_cifar10]
# Data: --data, else $TUTTI_DATA, else ./data, else a download of CIFAR-10 into ./data, else Debian's Fashion-MNIST.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
me=quickstart.sh
source .ci/common.sh

data=${TUTTI_DATA:-}
arguments=()
while (($#)); do
  case $1 in
    --data | --data-dir | --data_dir)
      (($# >= 2)) || { say "$1 needs a folder" >&2 && exit 2; }
      data=$2
      shift
      ;;
    --data=* | --data-dir=* | --data_dir=*) data=${1#*=} ;;
    *) arguments+=("$1") ;;
  esac
  shift
done

# given NAME...: is one of these options among the arguments?
given() {
  local name argument
  for name in "$@"; do
    for argument in "${arguments[@]}"; do
      argument=${argument//_/-}
      [[ $argument == "--$name" || $argument == "--$name="* ]] && return 0
    done
  done
  return 1
}

is_cifar10() { [[ -f $1/data_batch_1.bin || -f $1/cifar-10-batches-bin/data_batch_1.bin ]]; }

if [[ -z $data ]] && is_cifar10 data; then data=data; fi

packages=(g++ cmake ninja-build libdnnl-dev libeigen3-dev libcli11-dev)
download=no
if [[ -z $data ]] && ! given dataset; then
  download=yes
  packages+=(curl ca-certificates)
fi
install "${packages[@]}"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
say "building"
if ! { configure -DTUTTI_BUILD_EXAMPLES=ON && cmake --build build --target train_cifar10 --parallel; } >"$log" 2>&1; then
  tail -n 60 "$log"
  say "the build failed"
  exit 1
fi
grep 'tutti: component' "$log" || true

if [[ $download == yes ]]; then
  if bash datasets/cifar10/prepare --out data; then
    data=data
  else
    say "CIFAR-10 cannot be fetched; taking Debian's Fashion-MNIST"
    arguments+=(--dataset fashion_mnist)
  fi
fi
if [[ -z $data ]] && [[ " ${arguments[*]/=/ } " == *" --dataset fashion_mnist "* ]]; then
  install dataset-fashion-mnist
  bash datasets/fashion_mnist/prepare --out data
  data=data
fi

# bf16 pays only where the processor multiplies it.
if ! given precision dtype; then
  precision=f32
  if grep -qwE 'avx512_bf16|amx_bf16' /proc/cpuinfo; then precision=bf16; fi
  arguments+=(--precision "$precision")
fi
given depth num-layers || arguments+=(--depth 20)
given epochs num-epochs || arguments+=(--epochs 5)
given backend || arguments+=(--backend auto)
[[ -z $data ]] || arguments+=(--data "$data")
run_dir=
if ! given run-dir train-dir log-dir; then
  run_dir=runs/quickstart-$(date +%Y%m%d-%H%M%S)
  arguments+=(--run-dir "$run_dir")
fi

say "build/examples/train_cifar10 ${arguments[*]}"
build/examples/train_cifar10 "${arguments[@]}"

if [[ -f $run_dir/log.jsonl ]]; then
  accuracy=$(sed -n 's/.*"test_top1": *\([0-9.eE+-]*\).*/\1/p' "$run_dir/log.jsonl" | tail -n 1)
  say "test accuracy ${accuracy:-not measured}; the run's files are in $run_dir"
fi
