#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The program train_imagenet from outside: the flags of the Horovod trainer, its tables, runs, evaluation, bad records.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh" train_imagenet
tiny=(--synthetic --num-examples 48 --image-size 32 --num-classes 4 -m resnet18 -b 8 --display_every 2 --seed 3
  --num_parallel_calls 1 --nofp16)
# rows FILE: step and rate of the table's rows.
rows() { sed -nE 's/^ +([0-9]+) +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ ([0-9.]+)$/\1 \2/p' "$1"; }

expect 0 "--lr-decay-mode" --help
expect 0 "train_imagenet of tutti" --version
expect 2 "--no-such-option" --no-such-option
expect 2 "[--data-dir]" --num_epochs 1
expect 2 "[--num-epochs]" --synthetic
expect 2 "[--model]" --synthetic --num_batches 1 -m resnet20
expect 2 "[--loss-scale]" "${tiny[@]}" --num_batches 1 --loss_scale much
expect 2 "[--eval-size]" "${tiny[@]}" --num_batches 1 --eval-size 64
expect 2 "[--hue]" "${tiny[@]}" --num_batches 1 --hue 2
expect 2 "[schedule::Piecewise]" "${tiny[@]}" --num_batches 1 --lr_decay_mode steps --lr_decay_steps 1,2 --lr_decay_lrs 1,2
expect 2 "[--log-name]" "${tiny[@]}" --num_batches 1 --log_name ../elsewhere
expect 3 "nowhere" --data_dir "$work/nowhere" --num_epochs 1
expect 0 "25557032 parameters" --dry-run -m resnet50 -b 1
expect 0 "60192808 parameters" --dry-run -m resnet152 -b 1 --nofp16
expect 4 "[memory]" --synthetic --num_batches 1 -b 100000 --log_dir huge
rm -rf huge
[[ $(ls -A) == out ]] || complain "files without a run: $(ls -A)"

# The published peak rate and schedule: 0.1 for 256 images, poly to the power of 2, a row at step 1 and every second.
expect 0 "  Step Epoch Speed   Loss  FinLoss   LR" "${tiny[@]}" --num_batches 8 --lr 0.1 --log_dir a
[[ $(rows out) == $'1 0.10000\n2 0.07656\n4 0.03907\n6 0.01407\n8 0.00157' ]] || complain "rows: $(rows out)"
[[ $(rows a/hvd_train.log) == "$(rows out)" ]] || complain "hvd_train.log: $(cat a/hvd_train.log)"
[[ $(key a step step | paste -sd' ') == "1 2 4 6 8" ]] || complain "log.jsonl: $(key a step step | paste -sd' ')"
expect 0 "Using a learning rate of 0.003125" "${tiny[@]}" --num_batches 1 --log_dir b
expect 0 "Using a learning rate of 3.7" "${tiny[@]}" --num_batches 1 --log_dir b2 --use_larc

# The folder of a run is gone on with; --clear_log begins anew, and takes nothing away that is no run.
expect 0 "going on from" "${tiny[@]}" --num_batches 10 --lr 0.1 --log_dir a
expect 0 "done: 2 steps" "${tiny[@]}" --num_batches 2 --log_dir a --clear_log
[[ $(key a step step | paste -sd' ') == "1 2" ]] || complain "--clear_log: $(key a step step | paste -sd' ')"
mkdir other && touch other/file
expect 2 "[--clear-log]" "${tiny[@]}" --num_batches 2 --log_dir other --clear_log
[[ -e other/file ]] || complain "--clear_log removed a folder that is no run"

# A stopped run goes on with the same bits.
expect 0 done "${tiny[@]}" --num_epochs 2 --log_dir whole --loss_scale dynamic --use_larc --warmup_epochs 1 --save_checkpoints_steps 0
expect 0 done "${tiny[@]}" --num_epochs 2 --log_dir cut --loss_scale dynamic --use_larc --warmup_epochs 1 --max-steps 6
expect 0 done "${tiny[@]}" --num_epochs 2 --log_dir cut --loss_scale dynamic --use_larc --warmup_epochs 1
[[ $(key whole epoch train_loss | tail -n 1) == "$(key cut epoch train_loss | tail -n 1)" ]] ||
  complain "resumed: $(key whole epoch train_loss | paste -sd' ') and $(key cut epoch train_loss | paste -sd' ')"

# Weights: what a run saved begins another one, with its own classifier where the classes are others.
weights=$(ls -d whole/checkpoints/step-* | tail -n 1)/model.safetensors
expect 0 "102 tensors from" "${tiny[@]}" --num_batches 2 --log_dir tuned --pretrained "$weights"
expect 0 "the classifier begins anew" "${tiny[@]}" --num-classes 7 --num_batches 2 --log_dir tuned7 --pretrained "$weights"
expect 3 "missing" "${tiny[@]}" -m resnet34 --num_batches 2 --log_dir tuned34 --pretrained "$weights"
expect 3 "nowhere" "${tiny[@]}" --num_batches 2 --log_dir tuned0 --pretrained nowhere.safetensors

# Several ranks.
if command -v mpirun >/dev/null; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  mpirun --oversubscribe --bind-to none --mca btl self,vader,tcp -np 2 "$program" "${tiny[@]}" --num_batches 4 \
    --log_dir mpi --threads 1 >out 2>&1 || complain "two ranks: $(tail -n 3 out)"
  grep -q "strategy mpi, 2 ranks" out || complain "two ranks: $(head -n 2 out)"
  [[ $(rows out | wc -l) == 3 ]] || complain "two ranks: $(cat out)"
else
  complain "no mpirun (Debian: apt-get install openmpi-bin libopenmpi-dev)"
fi

# Real images, as class folders.
sample=${TUTTI_SOURCE_DIR:?}/../shared/data/imagenet-sample.tar
if [[ -f $sample ]]; then
  mkdir -p data/train data/val && tar -xf "$sample" -C data
  for class in $(find data/imagenet-sample -mindepth 1 -maxdepth 1 -type d | sort | head -n 12); do
    cp -r "$class" data/train/ && cp -r "$class" data/val/
  done
  real=(--data_dir data -m resnet18 -b 4 --image-size 64 --display_every 1 --nofp16 --seed 5)
  expect 0 "12 training and 12 test images" "${real[@]}" --num_epochs 2 --log_dir real --increased_aug
  grep -q "Evaluation after epoch 2: top1" out || complain "no evaluation: $(tail -n 3 out)"
  expect 0 " step  epoch  top1    top5     loss   checkpoint_time" "${real[@]}" --eval --eval_interval 1 --log_dir real
  [[ $(grep -cE "^ +[0-9]+ +[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9.]+   UTC:" out) == 2 ]] || complain "--eval: $(cat out)"
  grep -q checkpoint_time real/eval_hvd_train.log || complain "no eval_hvd_train.log"
  expect 0 "checkpoint_time" "${real[@]}" --eval --log_dir pre --pretrained "$(ls -d real/checkpoints/step-* | tail -n 1)"
  expect 0 "images/s" "${real[@]}" --test-io
  expect 0 done "${real[@]}" --num_epochs 1 --log_dir tv --preset torchvision
  # The same bits, whatever the number of threads that decode.
  for threads in 0 1 3; do
    expect 0 done "${real[@]}" --num_epochs 1 --log_dir "threads$threads" --num_parallel_calls $threads --increased_aug
  done
  [[ $(key threads0 step train_loss) == "$(key threads1 step train_loss)" &&
    $(key threads0 step train_loss) == "$(key threads3 step train_loss)" ]] || complain "threads that decode change the losses"
  # A damaged image: named, and with --on-bad-record skip counted and passed over.
  bad=$(find data/train -name '*.JPEG' | sort | sed -n 3p)
  truncate -s 2000 "$bad"
  expect 3 "$(basename "$bad")" "${real[@]}" --num_epochs 1 --log_dir bad
  expect 0 "$(basename "$bad")" "${real[@]}" --num_epochs 1 --log_dir skipped --on-bad-record skip
  [[ $(key skipped epoch skipped) == 1 ]] || complain "skipped: $(cat skipped/log.jsonl)"
  # Validation images that are there and damaged are not taken for none.
  touch data/validation-00001-of-00002
  expect 3 "validation-" "${real[@]}" --num_epochs 1 --log_dir lost --on-bad-record skip
  rm data/validation-00001-of-00002
else
  echo "SKIP: no $sample; nothing trained on real images"
fi

finish
