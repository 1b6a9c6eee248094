#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests that train_cifar10 trains by the recipes of the records for CIFAR-10, with narrow nets and synthetic images.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh" train_cifar10
tiny=(--dataset synthetic --num-examples 150 --width 0.1 --batch-size 50 --precision f32 --threads 1 --seed 3)

for recipe in airbench94 airbench94-muon airbench96 hive94; do
  # Three epochs of three steps.
  expect 0 "done: 9 steps" --recipe $recipe "${tiny[@]}" --epochs 3 --run-dir $recipe
  grep -q '^test, 6 views' out || complain "$recipe: no views: $(tail -n 4 out)"
  grep -q '^test loss' out || complain "$recipe: no accuracy of the images as they are"
  ! grep -q 'averaged' out || complain "$recipe evaluates an average: $(tail -n 4 out)"
done
# A run in two parts gives the same result.
for recipe in airbench94 hive94; do
  expect 0 "done: 4 steps" --recipe $recipe "${tiny[@]}" --epochs 3 --run-dir parts-$recipe --max-steps 4
  expect 0 "continues from" --recipe $recipe "${tiny[@]}" --epochs 3 --run-dir parts-$recipe --resume
  again=$(key parts-$recipe views test_loss | tail -n 1)
  [[ -n $again && $again == "$(key $recipe views test_loss)" ]] || complain "$recipe: $again in two parts, $(key $recipe views test_loss) in one"
done
# Lookahead's average is not what is evaluated and exported: here the weights differ from it since step 5.
expect 0 "done: 8 steps" --recipe airbench94 "${tiny[@]}" --epochs 3 --run-dir middle --max-steps 8
expect 0 "test loss" --network airbench94 "${tiny[@]}" --eval-only --resume=middle
! grep -q averaged out || complain "an average was evaluated: $(cat out)"
"$TUTTI_BUILD_DIR/tools/tutti-export" middle middle.onnx >exported 2>&1 || complain "$(cat exported)"
grep -q "the weights of step 8" exported || complain "exported: $(cat exported)"
expect 0 "done: 9 steps" --recipe airbench96-faster "${tiny[@]}" --epochs 3 --run-dir faster
expect 0 "done: 4 steps" --recipe airbench96-faster "${tiny[@]}" --epochs 3 --run-dir faster-part --max-steps 4
expect 2 "[--hardest] expected a run from its beginning" --recipe airbench96-faster "${tiny[@]}" --epochs 3 --run-dir faster-part --resume
expect 0 "views of the least certain quarter of the images" --recipe hive94 "${tiny[@]}" --epochs 1
# 7.59 epochs of three steps.
expect 0 "done: 23 steps" --recipe hive94 "${tiny[@]}" --tta 0
expect 0 "1972802 parameters" --recipe airbench94 --dry-run --batch-size 2
expect 2 "[--early-parameters]" --recipe airbench94 --network resnet --depth 8 "${tiny[@]:0:4}" --dry-run

finish
