#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests that train_cifar10 --recipe fast, with a narrow net and synthetic images, learns, resumes, and evaluates by
# views.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh" train_cifar10
tiny=(--recipe fast --ema-decay 0 --dataset synthetic --num-examples 600 --width 0.1 --batch-size 50 --threads 2 --seed 3)
# accuracy: prints the accuracy over the views in the output of the last run.
accuracy() { sed -nE 's/^test, 6 views.* top-1 ([0-9.]+) %.*/\1/p' out; }

expect 0 "1972802 parameters" --recipe fast --dry-run --batch-size 2
expect 0 "whitening" --recipe fast --dry-run --batch-size 2
expect 2 "[--recipe]" --recipe slow
expect 2 "[--depth]" --recipe fast --depth 32
expect 0 'pad-mode = "reflect"' --recipe fast --print-config
expect 2 "[--pad-size] expected less than the 32 pixels" --recipe fast --pad-size 32 --dry-run
expect 0 "parameters" --recipe fast --pad-size 31 --dry-run --batch-size 2
expect 0 "parameters" --recipe fast --pad-size 32 --pad-mode constant --dry-run --batch-size 2

expect 0 "cifar_fast 8 on synthetic images 3x32x32" "${tiny[@]}" --epochs 3 --run-dir a
accuracy=$(accuracy)
[[ -n $accuracy ]] || complain "no accuracy of several views: $(tail -n 4 out)"
awk "BEGIN { exit !($accuracy > 50) }" || complain "it has not learned: $accuracy %"
grep -q '^test loss' out || complain "no accuracy of the images as they are"
[[ $(key a epoch epoch | paste -sd' ') == "1 2 3" ]] || complain "epochs: $(cat a/log.jsonl)"
[[ $(ls a/checkpoints | grep -c '^step-') == 1 ]] || complain "checkpoints: $(ls a/checkpoints)"
# A second evaluation gives the same accuracy, although the first layer had other initial weights.
expect 0 "test, 6 views" "${tiny[@]}" --epochs 3 --run-dir a --resume --eval-only
[[ $(accuracy) == "$accuracy" ]] || complain "evaluated again: $(accuracy) instead of $accuracy"
expect 0 "test, 2 views" "${tiny[@]}" --epochs 3 --run-dir a --resume --eval-only --tta 1
expect 0 "test loss" "${tiny[@]}" --epochs 3 --run-dir a --resume --eval-only --tta 0
! grep -q views out || complain "views without --tta"
# The log has the accuracy too, between the last epoch and the end.
[[ $(sed -nE 's/^\{"event":"([a-z]+)".*/\1/p' a/log.jsonl | tail -n 3 | paste -sd' ') == "epoch views end" ]] ||
  complain "the log: $(tail -n 3 a/log.jsonl)"
[[ $(key a views views) == 6 && $(key a views step) == 36 ]] || complain "views: $(tail -n 2 a/log.jsonl)"
awk "BEGIN { d = 100 * $(key a views test_top1) - $accuracy; exit !(d < 0.01 && d > -0.01) }" ||
  complain "the log says $(key a views test_top1) of $accuracy %"

# With --ema-decay the averaged weights are used for the views and for the plain images.
expect 0 "test of averaged weights, 6 views" "${tiny[@]}" --epochs 3 --run-dir e --ema-decay 0.5
[[ $(key e epoch test_loss) == "$(key a epoch test_loss)" ]] || complain "averaging changes the training"
[[ -n $(key e views test_ema_loss) && -z $(key e views test_loss) ]] || complain "views: $(tail -n 2 e/log.jsonl)"
[[ $(key e views test_ema_loss) != "$(key a views test_loss)" ]] || complain "views of the weights, not their average"
averaged=$(sed -nE 's/^test of averaged weights, 6 views.*: (loss .*)/\1/p' out)
expect 0 "test of averaged weights, 6 views of each image: $averaged" "${tiny[@]}" --epochs 3 --run-dir e --ema-decay 0.5 \
  --resume --eval-only

# A run in two parts gives the same result.
expect 0 "done: 7 steps" "${tiny[@]}" --epochs 3 --run-dir b --max-steps 7
expect 0 "this run continues from b/checkpoints/step-000000007" "${tiny[@]}" --epochs 3 --run-dir b --resume
[[ $(accuracy) == "$accuracy" ]] || complain "in two parts: $(accuracy) instead of $accuracy"

# --pad-mode selects how images are padded, and --fill-value the colour of constant padding.
expect 0 "done: 36 steps" "${tiny[@]}" --epochs 3 --run-dir c --pad-mode constant
expect 0 "done: 36 steps" "${tiny[@]}" --epochs 3 --run-dir d --fill-value 7
[[ $(key c epoch train_loss) != "$(key a epoch train_loss)" ]] || complain "constant padding is reflected"
[[ $(key d epoch train_loss) == "$(key a epoch train_loss)" ]] || complain "reflected padding is filled"

finish
