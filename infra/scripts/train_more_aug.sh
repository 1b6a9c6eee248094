#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Trains ResNet-50 on ImageNet on many devices, 128 or more: colour augmentation, LARC, a linear cosine schedule; then
# evaluates.
#   train_more_aug.sh N
# Settings: see training.sh next to this file.
set -euo pipefail
me=train_more_aug.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/training.sh"
(($# == 1)) || usage "train_more_aug.sh N"
check_devices "$1"
epochs=$(count EPOCHS 90)
warmup=$(count WARMUP_EPOCHS 5)
train "$1" --data_dir "$data_dir" --num_epochs "$epochs" --clear_log --increased_aug --mom 0.977 --wdecay 0.0005 \
  --loss_scale 256 --use_larc --lr_decay_mode linear_cosine --warmup_epochs "$warmup"
