#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests --preset mxnet and --log-lines mxnet: a program that reads MXNet's logs finds the accuracy and the time of each
# epoch in tutti's output.
set -uo pipefail
fixtures=$(cd "$(dirname "${BASH_SOURCE[0]}")/../data/fixtures/images" && pwd)
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh" train_cifar10

# table FILE: prints "epoch train validation time" for each epoch, as MXNet's parse_log.py finds them.
table() {
  python3 - "$1" <<'PY'
import re
import sys
kinds = [re.compile(r".*Epoch\[(\d+)\] " + kind + r".*=([.\d]+)") for kind in ("Train-accuracy", "Validation-accuracy", "Time")]
found = {}
for line in open(sys.argv[1]):
    for kind, pattern in enumerate(kinds):
        match = pattern.match(line)
        if match:
            found.setdefault(int(match[1]), {}).setdefault(kind, []).append(float(match[2]))
            break
for epoch, values in sorted(found.items()):
    print(epoch, *(len(values.get(kind, [])) for kind in range(3)))
    assert all(0 <= v <= 1 for kind in (0, 1) for v in values.get(kind, [])) and values[2][0] > 0, values
PY
}

tiny=(--dataset synthetic --num-examples 96 --image-shape 3,16,16 --num-layers 8 --batch-size 16 --threads 1 --disp-batches 3)
expect 0 "done: 12 steps" --preset mxnet "${tiny[@]}" --num-epochs 2 --run-dir preset
[[ $(table out) == $'0 1 1 1\n1 1 1 1' ]] || complain "the preset's log: $(table out 2>&1) of $(cat out)"
grep -qP '^Epoch\[0\] Batch \[3\]\tSpeed: [0-9.]+ samples/sec\taccuracy=[0-9.]+$' out || complain "no line of a batch: $(cat out)"
grep -q "epoch 1 step" out && complain "tutti's own lines too: $(cat out)"
expect 0 "done: 6 steps" "${tiny[@]}" --num-epochs 1 --log-lines mxnet --run-dir option
[[ $(table out) == "0 1 1 1" ]] || complain "the option's log: $(table out 2>&1) of $(cat out)"
expect 0 "epoch 1 step 3/6" "${tiny[@]}" --num-epochs 1 --run-dir own
[[ -z $(table out) ]] || complain "tutti's own lines are MXNet's: $(cat out)"

# train_imagenet prints these lines in place of its table.
program=$TUTTI_BUILD_DIR/examples/train_imagenet
expect 0 "Epoch[0] Train-accuracy=" --synthetic --num_examples 32 --image_size 32 -m resnet18 -b 8 --num_epochs 1 --threads 1 --nofp16 \
  --log_dir imagenet --log-lines mxnet
grep -q "FinLoss" out && complain "the table of the other trainer too: $(cat out)"

# The record files that MXNet's scripts use: a training file, a validation file and a list. The batch size is that of
# all ranks together.
python3 - "$fixtures" <<'PY'
import pathlib
import struct
import sys
image = (pathlib.Path(sys.argv[1]) / "420.jpg").read_bytes()
for name, count in (("one.rec", 12), ("two.rec", 4)):
    offsets = []
    with open(name, "wb") as file:
        for i in range(count):
            offsets.append(file.tell())
            body = struct.pack("<IfQQ", 0, i % 2, i, 0) + image
            file.write(struct.pack("<II", 0xced7230a, len(body)) + body + bytes(-len(body) % 4))
    pathlib.Path(name).with_suffix(".idx").write_text("".join(f"{i}\t{at}\n" for i, at in enumerate(offsets)))
PY
gluon=(--use-rec --rec-train one.rec --rec-train-idx one.idx --rec-val two.rec --rec-val-idx two.idx --model resnet18_v1b --mode hybrid
  --batch-size 4 --num-classes 2 --image-shape 3,32,32 --num-epochs 2 --lr 0.01 --lr-mode step --lr-decay 0.1 --lr-decay-epoch 1
  --save-frequency 1 --save-dir params --logging-dir curves --log-interval 1 --threads 1 --nofp16 -j 1)
expect 0 "12 training and 4 test images" "${gluon[@]}" --evaluate-every 1
grep -qF -e "--batch-size 4 counts the images of all ranks together" out || complain "the note of --use-rec: $(cat out)"
[[ $(ls params/checkpoints | grep -c '^step-00000000[36]$') == 2 ]] || complain "--save-frequency 1: $(ls params/checkpoints)"
[[ -e curves/log.jsonl && ! -e params/log.jsonl ]] || complain "--logging-dir: $(ls params curves)"
grep -qE "^epoch 2/2 .* test loss " out || complain "--rec-val: $(cat out)"
expect 2 "[--num-examples] expected 12, the number of images in one.rec, or 0, got 13" "${gluon[@]}" --num-examples 13 --save-dir other
expect 3 "[--data-train] expected a .rec file" "${gluon[@]}" --rec-train none.rec --save-dir other
expect 3 "[--data-val-idx] expected a file" "${gluon[@]}" --rec-val-idx none.idx --save-dir other
finish
