#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# processors: 2
# Tests tutti-train: its choices, its split, what it leaves in the run's folder, fine-tuning, several ranks, and folders
# with too few classes or images. Takes half a minute of processor time.
set -euo pipefail
train=${TUTTI_BUILD_DIR:?}/tools/tutti-train
if [[ ! -x $train ]]; then
  echo "SKIP: no $train; CLI11 is missing"
  exit 77
fi
unset TUTTI_DATA
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
failures=0
complain() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
# expect STATUS TEXT ARGUMENT...: checks that tutti-train ends with the status and prints the text.
expect() {
  local status=$1 text=$2 got=0
  shift 2
  "$train" "$@" >out 2>&1 || got=$?
  [[ $got == "$status" ]] || complain "$*: status $got instead of $status: $(tail -n 3 out)"
  grep -qF -e "$text" out || complain "$*: no '$text' in: $(cat out)"
}
says() { grep -qF -e "$1" out || complain "no '$1' in: $(cat out)"; }

"$TUTTI_BUILD_DIR/examples/save_images" drawn 10 >/dev/null
mv drawn/train shapes  # class folders without validation images
# Links that are not followed are counted, and a name of the validation folder.
mkdir -p linked/train linked/valid elsewhere
cp -r shapes/circle shapes/cross linked/train
cp -r shapes/circle shapes/cross linked/valid
ln -s nowhere.png linked/train/circle/a.png
ln -s nowhere.png linked/train/cross/b.png
ln -s "$PWD/elsewhere" linked/train/cross/more

# Too few classes or images: what is needed, before anything is written.
mkdir one two none
cp -r shapes/circle one
cp -r shapes/circle shapes/cross two
find two/cross -name '*.png' | sort | tail -n +3 | xargs rm
expect 3 "expected images of two classes or more, each in a folder of its own, got one class 'circle'" one
expect 3 "expected 5 images or more of each class, of which a fifth is held out for validation, got 2 of class 'cross'" two
expect 3 "expected a folder of images for each class" none
mkdir -p inside/deep vehicles
cp -r shapes/circle shapes/cross inside/deep
cp -r shapes/circle vehicles/car
cp -r shapes/cross vehicles/train
expect 3 "hint: did you mean inside/deep." inside
expect 3 "a class needs another name than these" vehicles
expect 2 "[--data-dir] expected the folder of the images, or --synthetic, got neither. hint: the folder is the first word"
expect 2 "hint: the folder is the first word: tutti-train FOLDER." --num-epochs 1 shapes
expect 2 "did you mean --num-epochs" shapes --num-epoch 1
[[ ! -e runs ]] || complain "it wrote before it refused: $(ls runs)"

# A run inside the folder of the images would be a class of the next one.
expect 2 "[--log-dir] expected a folder outside the images" shapes --log-dir shapes/run

# It splits, chooses and says so; an option goes before a choice. It leaves the report, the net and the worst images.
tiny=(--image-size 32 --num-epochs 2 --threads 2 --no-tensorboard)
expect 0 "done: " shapes "${tiny[@]}"
says "choice: the net is resnet18"
says "8 of 40 images, the same share of each class, are held out by seed 1"
says "the options that count, yours before the choices: --model resnet18 --image-size 32 --stem small --batch-size 8 --num-epochs 2"
says "mean F1"
says "predict:     tutti-predict runs/shapes IMAGE..."
says "go on:       tutti-train shapes --image-size 32 --threads 2 --no-tensorboard --num-epochs 4"
for file in report.html net.onnx worst.txt log.jsonl evaluation.json; do
  [[ -s runs/shapes/$file ]] || complain "no $file: $(ls runs/shapes)"
done
grep -q "^shapes/[a-z]*/[0-9]*.png: is " runs/shapes/worst.txt || complain "worst.txt: $(cat runs/shapes/worst.txt)"
grep -q '"status":"finished"' runs/shapes/report.html || complain "the report tells no end"
says "net.onnx: resnet_imagenet-18, 4 classes, the weights of step "
# The table, the net, the matrix and the worst images are of the same evaluation.
step=$(sed -nE 's/^the best evaluation, of step ([0-9]+):.*/\1/p' out)
says "the weights of step $step,"
grep -q "\"step\":$step," runs/shapes/evaluation.json || complain "evaluation.json is not of step $step: $(cut -c1-80 runs/shapes/evaluation.json)"
# The same command has nothing left to do, and shows the scores of the best evaluation again; more epochs go on with the
# same split.
best=$(grep "the best evaluation, of step" out)
expect 0 "$best" shapes "${tiny[@]}"
expect 0 "this run continues from runs/shapes/checkpoints" shapes --image-size 32 --num-epochs 3 --threads 2 --no-tensorboard
[[ $(grep -c '"event":"epoch"' runs/shapes/log.jsonl) == 3 ]] || complain "epochs: $(grep -c epoch runs/shapes/log.jsonl)"

# Another seed would evaluate it on images of its training.
expect 2 "[--seed] expected 1, by which the validation images of this run were chosen, got 2" shapes "${tiny[@]}" --seed 2
expect 2 "[--seed] expected 1, by which the validation images of this run were chosen, got 2" shapes --eval --threads 2 --seed 2

# With another number of images, others would be held out.
cp -r shapes more
cp more/circle/0.png more/circle/zz.png
expect 2 "[--data-dir] expected the 32 images of this run's training, apart from the held out ones, got 33" more --log-dir runs/shapes "${tiny[@]}"

# A run that was killed before its first checkpoint begins again by the same command, unless it still trains.
mkdir begun
head -n 2 runs/shapes/log.jsonl >begun/log.jsonl
exec 9<begun
flock 9
expect 2 "[--log-dir] expected a folder that no other process writes to, got begun, in which another process trains" \
  linked "${tiny[@]}" --log-dir begun
exec 9<&-
expect 0 "no checkpoint in begun yet: starting from the beginning" linked "${tiny[@]}" --log-dir begun
says "note: linked/train: not followed: links to folders 1, links whose target is missing 2"
says "20 training and 20 test images"
mkdir full
touch full/notes.txt
expect 2 "[--log-dir] expected an empty or a new folder, got full" linked "${tiny[@]}" --log-dir full

# The printed commands work.
"$TUTTI_BUILD_DIR/tools/tutti-predict" runs/shapes "$(find shapes -name '*.png' | sort | head -n 1)" >out 2>&1 || complain "predict: $(cat out)"
grep -q "circle" out || complain "predict: $(cat out)"

# A preset, another recipe and a number of steps win against the choices, also with weights to begin from.
expect 0 'lr-decay-mode = "steps"' shapes --preset torchvision --print-config
expect 0 'optimizer = "lamb"' shapes --recipe rsb-a3 --pretrained runs/shapes --print-config
expect 0 "num-epochs = 0" shapes --num-batches 3 --augmentation horovod --print-config
expect 0 'lr-decay-mode = "one_cycle"' shapes --lr-decay-mode one_cycle --print-config
# Each of several ranks gets a smaller batch.
expect 0 "batch-size = 8" shapes --print-config
TUTTI_RANK=0 TUTTI_SIZE=4 expect 0 "batch-size = 4" shapes --print-config

# Fine-tuning takes net and size from the weights, with another head.
mkdir pair
cp -r shapes/circle shapes/square pair
expect 0 "for another number of classes: fc.weight, fc.bias" pair --pretrained runs/shapes --num-epochs 1 --threads 2 --no-tensorboard --freeze layer1
says "choice: the net is resnet18, because the weights are of it"
says "choice: the images have the size with which these weights were trained"
says "--lr 0.000625"
expect 3 "no such path" pair --pretrained nowhere --log-dir none
"$TUTTI_BUILD_DIR/examples/train_cifar10" --dataset synthetic --num-examples 64 --depth 8 --batch-size 32 --epochs 1 --no-tensorboard \
  --run-dir small >/dev/null
expect 3 "got those of resnet-8. hint: --model names the net" pair --pretrained small --log-dir none
# A classifier of as many classes comes too. A note says that they are others.
mkdir others
cp -r shapes/cross shapes/triangle others
expect 0 "note: the classifier was loaded too, and it is that of other classes: circle ..." others --pretrained runs/pair --num-epochs 1 \
  --threads 2 --no-tensorboard
# When the run goes on, its own weights and net count, and --pretrained is not needed.
expect 0 "no effect: --pretrained, because the run goes on with its own weights" others --pretrained runs/pair --num-epochs 1 --threads 2 --no-tensorboard
! grep -q "of other classes\|tensors from" out || complain "the first weights again: $(cat out)"
# A run of images with other classes is not continued: two folders may have the same name.
expect 2 "[--log-dir] expected the folder of a run with the classes of these images, cross, triangle, got runs/pair with the classes circle, square" \
  others --log-dir runs/pair --num-epochs 3 --threads 2 --no-tensorboard
# The weights tell the net, also if it is not a ResNet.
# A shell accepts the printed commands also if a name is not plain.
odd=$'möbil\n1'
expect 0 "done: " pair --model mobilenet_v2 --image-size 32 --num-epochs 1 --threads 2 --no-tensorboard --log-dir "$odd"
says "predict:     tutti-predict $'möbil\\x0a1' IMAGE..."
says "go on:       tutti-train pair --model mobilenet_v2"
expect 0 "choice: the net is mobilenet_v2, because the weights are of it" others --pretrained "$odd" --num-epochs 1 --threads 2 \
  --no-tensorboard --log-dir tuned
expect 0 "choice: the net is mobilenet_v2, because the run in tuned goes on" others --eval --threads 2 --log-dir tuned
# A net that only begins like one of --model.
python3 - <<'PYTHON'
import json, struct
shapes = {"conv1.weight": [64, 3, 7, 7], "layer1.0.conv2.weight": [64, 64, 3, 3], "layer1.0.conv3.weight": [256, 64, 1, 1]}
shapes.update({f"layer{stage}.{block}.conv1.weight": [64, 64, 1, 1] for stage in (1, 2, 3, 4) for block in (0, 1)})
head, at = {}, 0
for name, (a, b, c, d) in shapes.items():
    head[name] = {"dtype": "F32", "shape": [a, b, c, d], "data_offsets": [at, at := at + 4 * a * b * c * d]}
text = json.dumps(head).encode()
open("resnet26.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + bytes(at))
PYTHON
expect 3 "expected weights of a net of --model" pair --pretrained resnet26.safetensors --log-dir none

# Several ranks: the split is the same, and one rank writes.
if [[ -x $(command -v mpirun) ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  if "$TUTTI_BUILD_DIR/tools/tutti-launch" -n 2 "$train" shapes --image-size 32 --num-epochs 1 --batch-size 8 --threads 1 \
    --no-tensorboard --log-dir ranks >out 2>&1; then
    says "2 ranks"
    says "go on:       tutti-launch -n 2 "
    [[ $(grep -c "^predict: \|predict:     tutti-predict ranks" out) == 1 ]] || complain "not one rank writes: $(cat out)"
    [[ -s ranks/net.onnx ]] || complain "no net of two ranks"
  elif ! grep -q "strategies of this build\|install " out; then
    complain "two ranks: $(cat out)"
  fi
fi
((failures == 0)) || exit 1
echo "all good"
