#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Trains the depth-50 net of the elastic MXNet scripts (28x28 images, no augmentation, 758,624 parameters) on CIFAR-10
# until 92 % of the training images are classified correctly, and prints the time.
#   examples/cifar10_to_92_percent.sh [options of train_cifar10]
# The program is in $TUTTI_BUILD, by default build/ next to this folder.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=${TUTTI_BUILD:-$root/build}/examples/train_cifar10
[[ -x $program ]] || {
  echo "cifar10_to_92_percent.sh: no $program. hint: ./quickstart.sh builds it" >&2
  exit 2
}
start=$SECONDS
"$program" --preset cifar-resnet50-28 --precision bf16 "$@"
echo "cifar10_to_92_percent.sh: $((SECONDS - start)) seconds from start to end"
