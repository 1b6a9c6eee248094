#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Trains ResNet-50 on ImageNet for 90 epochs on N devices, then evaluates. EPOCHS=30 train.sh N: another data set.
#   train.sh N
# Settings: see training.sh next to this file.
set -euo pipefail
me=train.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/training.sh"
(($# == 1)) || usage "train.sh N"
check_devices "$1"
epochs=$(count EPOCHS 90)
warmup=$(count WARMUP_EPOCHS 10)
train "$1" --data_dir "$data_dir" --num_epochs "$epochs" --lr_decay_mode poly --warmup_epochs "$warmup" --clear_log
