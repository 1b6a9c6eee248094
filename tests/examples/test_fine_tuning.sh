#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests fine-tuning with train_imagenet and train_cifar10: another head, frozen parameters, rates of groups, weights of
# classes, early stopping, --recipe finetune, --find-lr and --batch-size auto. Takes half a minute of processor time.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh" train_imagenet
"${TUTTI_BUILD_DIR:?}/examples/save_images" images 8 >/dev/null
tiny=(--data-dir images --image-size 32 -m resnet18 -b 8 --augmentation torchvision --seed 3 --no-fp16 --no-tensorboard)

# The patterns are checked before the first step.
expect 2 "[--freeze] expected a pattern of parameters' names" "${tiny[@]}" --num-batches 1 --log-dir none --freeze layer9
grep -q "the nearest are layer" out || complain "no nearest names: $(cat out)"
expect 2 "a parameter or more that learns" "${tiny[@]}" --num-batches 1 --log-dir none --freeze '*'
expect 2 "[--rate-of] expected PATTERN=FACTOR" "${tiny[@]}" --num-batches 1 --log-dir none --rate-of fc
expect 2 "--freeze fc" "${tiny[@]}" --num-batches 1 --log-dir none --rate-of fc=0
expect 2 "the nearest are circle" "${tiny[@]}" --num-batches 1 --log-dir none --class-weights circel=2
expect 2 "and no such file" "${tiny[@]}" --num-batches 1 --log-dir none --class-weights nowhere.txt
true >no-weights.txt
expect 2 "no-weights.txt, which has none" "${tiny[@]}" --num-batches 1 --log-dir none --class-weights no-weights.txt
expect 2 "expected a weight above 0" "${tiny[@]}" --num-batches 1 --log-dir none --class-weights circle=0,cross=0,square=0,triangle=0
expect 2 "'!fc', which chooses none" "${tiny[@]}" --num-batches 1 --log-dir none --freeze '!fc'
expect 2 "[--patience]" "${tiny[@]}" --num-epochs 1 --log-dir none --patience 2 --evaluate-every 0
expect 2 "[--find-lr-steps] expected --find-lr" "${tiny[@]}" --num-epochs 1 --log-dir none --find-lr-steps 50
expect 2 "[--validation-share]" --synthetic --num-batches 1 --log-dir none --validation-share 0.2
expect 2 "[--recipe] expected goyal" "${tiny[@]}" --num-batches 1 --recipe fast
expect 2 "[--crop-area]" --synthetic --num-batches 1 --crop-area 0.3

mkdir -p alone/train
ln -s "$PWD/images/train/circle" alone/train/
expect 3 "[--data-dir] expected training images of two classes or more, got one class 'circle'" --data-dir alone "${tiny[@]:2}" --num-epochs 1 --log-dir none

# A net of two classes, from whose weights a net of four begins.
mkdir -p two/train two/validation
for split in train validation; do ln -s "$PWD/images/$split/"{circle,cross} "two/$split/"; done
expect 0 done --data-dir two "${tiny[@]:2}" --num-epochs 1 --log-dir base
expect 0 "done: 8 steps" "${tiny[@]}" --num-epochs 2 --log-dir tuned --pretrained base --recipe finetune --freeze '*,!fc' \
  --freeze-statistics --rate-of fc=2 --class-weights auto --patience 5
for text in "for another number of classes: fc.weight, fc.bias" "parameters stay" "20 batch norms use their running statistics" \
  "class weights: circle 1, cross 1"; do
  grep -qF "$text" out || complain "no '$text' in: $(cat out)"
done
# Only the classifier differs from the weights of the first run.
python3 - base tuned <<'PYTHON' || complain "the wrong tensors have changed"
import glob, json, struct, sys
def tensors(run):
    data = open(sorted(glob.glob(f"{run}/checkpoints/step-*/model.safetensors"))[-1], "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + size])
    return {n: data[8 + size + e["data_offsets"][0]:8 + size + e["data_offsets"][1]]
            for n, e in head.items() if n != "__metadata__" and not n.endswith("num_batches_tracked")}
base, tuned = tensors(sys.argv[1]), tensors(sys.argv[2])
sys.exit(sorted(n for n in base if base[n] != tuned[n]) != ["fc.bias", "fc.weight"])
PYTHON
[[ $(key tuned end mean_f1) ]] || complain "no scores in the last line: $(tail -n 1 tuned/log.jsonl)"
tail -n 1 tuned/log.jsonl | grep -q '"class":"circle","images":2,"precision":' || complain "scores: $(tail -n 1 tuned/log.jsonl)"
grep -q '"path":"images/validation/' tuned/evaluation.json || complain "no paths of the worst images"

# Without learning no evaluation is better than the first one, so the run ends early, and a resumed one too.
printf 'circle 2\ncross 0.5\n' >weights=2.txt
expect 0 "the last 2 evaluations were not better" "${tiny[@]}" --num-epochs 9 --log-dir stale --lr 0 --lr-decay-mode constant --freeze-statistics --patience 2 \
  --class-weights weights=2.txt
grep -q "class weights: circle 2, cross 0.5, square 1, triangle 1" out || complain "weights of a file: $(cat out)"
[[ $(key stale epoch epoch | tail -n 1) == 3 ]] || complain "it ends after epoch $(key stale epoch epoch | tail -n 1)"
expect 0 "done: 12 steps" "${tiny[@]}" --num-epochs 9 --log-dir stale --lr 0 --lr-decay-mode constant --freeze-statistics --patience 2 --class-weights weights=2.txt

# Images that are held out by the seed.
mkdir one
ln -s "$PWD/images/train/"* one/
expect 3 "[--patience] expected validation images" --data-dir one "${tiny[@]:2}" --num-epochs 1 --log-dir none --patience 2
expect 0 "are held out by seed 3" --data-dir one "${tiny[@]:2}" --num-epochs 1 --log-dir held --validation-share 0.25
grep -q "24 training and 8 test images" out || complain "the split: $(cat out)"

# A ramp of the rate writes no checkpoint, and a training follows in its folder.
expect 0 "--lr " "${tiny[@]}" --num-epochs 1 --log-dir ramp --find-lr --find-lr-steps 24
[[ -s ramp/find_lr.json && ! -e ramp/checkpoints && ! -e ramp/log.jsonl ]] || complain "files of the ramp: $(ls ramp)"
"$TUTTI_BUILD_DIR/tools/tutti-report" ramp --out ramp.html >/dev/null || complain "no report of the ramp"
grep -q '"find_lr":{"suggested":' ramp.html || complain "no curve in the report"
expect 2 "[--find-lr-steps]" "${tiny[@]}" --num-epochs 1 --log-dir ramp --find-lr --find-lr-steps 3
expect 0 "--batch-size auto: 8 images per rank fit the memory" "${tiny[@]:0:6}" --batch-size auto "${tiny[@]:8}" --num-batches 1 --log-dir ramp
# The notes of a recipe follow the batch that was found, and the search leaves no trace in a run with logical ranks.
expect 0 "note: --recipe torchvision-v2: 8 images per update in place of 1024, so the rate is 0.00390625" "${tiny[@]:0:4}" -m resnet18 \
  --recipe torchvision-v2 --batch-of rank --batch-size auto --eval-size 32 --eval-resize 36 --num-batches 1 --no-tensorboard --no-fp16 \
  --log-dir found
! grep -q "256 images per update\|1024 images per update" out || complain "a note about another batch: $(cat out)"
for batch in 8 auto; do
  expect 0 done "${tiny[@]:0:6}" --batch-size $batch "${tiny[@]:8}" --num-batches 2 --logical-ranks 2 --lr 0.1 --log-dir "logical-$batch"
done
cmp logical-{8,auto}/checkpoints/step-*2/model.safetensors || complain "the search for a batch changes the run"

# train_cifar10 has the same options.
program=${program%train_imagenet}train_cifar10
small=(--dataset synthetic --num-examples 64 --depth 8 --batch-size 16 --threads 1 --seed 2 --no-tensorboard)
expect 0 done "${small[@]}" --epochs 1 --run-dir cifar
expect 0 "done: 4 steps" "${small[@]}" --recipe finetune --epochs 1 --num-classes 12 --pretrained cifar --run-dir cifar2 \
  --freeze 'layer1' --class-weights auto
expect 2 "[--recipe] expected fast, airbench94" "${small[@]}" --recipe slow
finish
