#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Trains ResNet-50 on synthetic images on N devices (8 if not given) to measure the speed of the hosts together.
#   train_synthetic.sh [N]
# Settings: see training.sh next to this file.
set -euo pipefail
me=train_synthetic.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/training.sh"
(($# <= 1)) || usage "train_synthetic.sh [N]"
n=${1:-8}
check_devices "$n"
larc=()
if ((n >= 128)); then larc=(--use_larc --loss_scale 256); fi
epochs=$(count EPOCHS 5)
images=()
if [[ -n ${NUM_EXAMPLES:-} ]]; then images=(--num_examples "$(count NUM_EXAMPLES 0)"); fi
train "$n" --synthetic --num_epochs "$epochs" --clear_log "${larc[@]}" "${images[@]}"
