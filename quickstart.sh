#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs missing packages, builds, finds data and trains a ResNet-20. Prints its test accuracy and the next commands.
#   ./quickstart.sh [--data DIR] [options of train_cifar10]
# Data: --data; otherwise $TUTTI_DATA; otherwise data/ next to this script, into which CIFAR-10 is fetched; otherwise
# Debian's Fashion-MNIST.
set -euo pipefail
me=quickstart.sh
root=$(dirname "${BASH_SOURCE[0]}")
source "$root/.ci/common.sh"

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

# given NAME...: succeeds if one of these options is among the arguments.
given() {
  local name argument
  for name in "$@"; do
    for argument in "${arguments[@]}"; do
      argument=${argument%%=*}
      [[ ${argument//_/-} == "--$name" ]] && return 0
    done
  done
  return 1
}

is_cifar10() { [[ -f $1/data_batch_1.bin || -f $1/cifar-10-batches-bin/data_batch_1.bin ]]; }
is_fashion_mnist() { compgen -G "$1/train-images-idx3-ubyte*" >/dev/null || [[ -d $1/fashion-mnist ]]; }

if [[ -z $data ]] && is_cifar10 "$root/data"; then data=$root/data; fi

packages=(g++ cmake ninja-build libdnnl-dev libeigen3-dev libcli11-dev libjpeg-dev libstb-dev)
fetch=no
if [[ -z $data ]] && ! given dataset; then
  fetch=yes
  packages+=(curl ca-certificates)
fi
install "${packages[@]}"

# The program that trains, and the programs of the commands at the end.
programs=(train_cifar10 tutti-report tutti-predict save_images train_imagenet)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
say "building"
if ! { configure -DTUTTI_BUILD_EXAMPLES=ON -DTUTTI_BUILD_TESTS=OFF -DTUTTI_BUILD_BENCH=OFF -DTUTTI_PRECOMPILE=ON &&
  cmake --build "$root/build" --target "${programs[@]}" --parallel; } \
  >"$log" 2>&1; then
  tail -n 60 "$log"
  say "the build failed"
  exit 1
fi
sed -n 's/^-- tutti: //p' "$log"

if [[ $fetch == yes ]]; then
  if bash "$root/datasets/cifar10/prepare" --out "$root/data"; then
    data=$root/data
  else
    say "CIFAR-10 cannot be fetched; using Fashion-MNIST"
    arguments+=(--dataset fashion_mnist)
  fi
elif [[ -n $data ]] && ! given dataset && ! is_cifar10 "$data" && is_fashion_mnist "$data"; then
  arguments+=(--dataset fashion_mnist)
fi
if [[ -z $data && ${arguments[*]/=/ } == *"--dataset fashion_mnist"* ]]; then
  is_fashion_mnist "$root/data" || install dataset-fashion-mnist
  bash "$root/datasets/fashion_mnist/prepare" --out "$root/data"
  data=$root/data
fi

# bf16 is faster only if the processor can multiply it.
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
  run_dir=$root/runs/quickstart-$(date +%Y%m%d-%H%M%S)
  arguments+=(--run-dir "$run_dir")
fi

say "$root/build/examples/train_cifar10 ${arguments[*]}"
"$root/build/examples/train_cifar10" "${arguments[@]}"

if [[ -f $run_dir/log.jsonl ]]; then
  accuracy=$(sed -n 's/.*"test_top1": *\([0-9.eE+-]*\).*/\1/p' "$run_dir/log.jsonl" | tail -n 1)
  say "test accuracy ${accuracy:-not measured}; the run's files are in $run_dir"

  # next WHAT COMMAND...: prints a command that can be pasted unchanged.
  next() {
    printf '\n%s\n ' "$1"
    shift
    printf ' %q' "$@"
    printf '\n'
  }
  next "The run's curves and its confusion matrix, as one page:" \
    "$root/build/tools/tutti-report" "$run_dir" --out "$run_dir/report.html"
  if [[ -n $data ]] && "$root/build/examples/save_images" "$run_dir/images" 3 "$data"; then
    next "Three test images, with the class in their names, and the answers of the net:" \
      "$root/build/tools/tutti-predict" "$run_dir" "$run_dir"/images/*.png
  fi
  next "A net of your own images, in images/train/CLASS/ and images/validation/CLASS/ (docs/how-to/own-images.md):" \
    "$root/build/examples/train_imagenet" --data-dir images -m resnet18 --image-size 64 --augmentation torchvision \
    --batch-size 32 --num-epochs 20 --optimizer adamw --lr 0.002 --warmup-epochs 1 --evaluate-every 1 --log-dir runs/own
fi
