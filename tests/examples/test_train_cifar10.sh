#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the program train_cifar10 from the outside: exit codes, run folder, log, resume, signals.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh" train_cifar10
tiny=(--dataset synthetic --num-examples 96 --image-shape "3,16,16" --depth 8 --batch-size 32 --threads 2 --seed 3)

expect 0 "Optimisation:" --help
expect 0 "per rank" --help
# --help lists the strategies of this build, and the packages to install for strategies that it lacks.
words=$("$program" --help | tr -s ' \n' '  ')
for strategy in mpi nccl gloo ps ps_async; do
  if "$program" --strategy $strategy 2>&1 | grep -q "and build again"; then
    [[ $words == *"not in this build:"*" $strategy needs "* ]] || complain "--help does not say what $strategy needs"
  else
    [[ $words == *"--strategy TEXT"*" $strategy ("*"default: depends on the number"* ]] || complain "--help does not list $strategy"
  fi
done
expect 0 "train_cifar10 of tutti" --version
expect 2 "--no-such-option" --no-such-option
expect 2 "[--gpus]" --gpus 0
expect 2 "bf16" --dtype float16
expect 3 "prepare-data --out DIR, in a source tree datasets/cifar10/prepare --out DIR, fetches" --data "$work/nowhere"
# If the folder contains another data set, the error names the option or program for that data set.
mkdir -p classes/train/cat fashion && touch classes/train/cat/a.jpg fashion/train-images-idx3-ubyte
expect 3 "train_imagenet --data-dir classes -m resnet18 --image-size 64 trains on such images" --data classes
expect 3 "add --dataset fashion_mnist" --data fashion
rm -r classes fashion
expect 3 "no file or folder at" --resume=nowhere
expect 2 "[--config] expected a file that can be read, got no file at 'nowhere'" --config nowhere
expect 2 "[--config] expected a file that can be read, got no file at '.'" --config .
expect 2 "[--image-shape]" --dry-run --image-shape 1,28,28
expect 2 "[--num-classes]" --dry-run --num-classes 5
[[ $(ls -A) == out ]] || complain "files without a run: $(ls -A)"

expect 0 "758624 parameters" --dry-run --preset cifar-resnet50-28 --batch-size 2
# MXNet's name `resnet` selects its net with bottlenecks for small images. For larger images it selects the net that
# also has the name `resnet_postact`.
expect 0 "758624 parameters" --dry-run --network resnet --num-layers 50 --image-shape 3,28,28 --batch-size 2
expect 0 "1730784 parameters" --dry-run --network resnet --num-layers 110 --image-shape 3,28,28 --batch-size 2
expect 0 "1703264 parameters" --dry-run --network resnet --num-layers 164 --image-shape 3,28,28 --batch-size 1
expect 0 "758554 parameters" --dry-run --network resnet_postact --num-layers 50 --image-shape 3,28,28 --batch-size 2
expect 0 "758554 parameters" --dry-run --network resnet --num-layers 50 --batch-size 2
expect 2 "[--depth]" --dry-run --network resnet --num-layers 47 --image-shape 3,28,28
expect 0 "activations" --dry-run --network resnet --num-layers 20 --batch-size 2 --kv-store dist_device_sync
[[ ! -e runs ]] || complain "--dry-run made a run folder"
expect 0 "images/s" "${tiny[@]}" --test-io 1 --disp-batches 1
[[ ! -e runs ]] || complain "--test-io made a run folder"

# --print-config prints a file that starts the same run. It accepts options that need another build or machine.
expect 0 'strategy = "mpi"' --strategy mpi --print-config
expect 0 'strategy = "nccl"' --strategy nccl --backend cuda --print-config
"$program" "${tiny[@]}" --epochs 2 --disp-batches 1 --run-dir a --print-config >config
expect 0 "epoch 2/2" --config config
[[ $(key a step step | paste -sd' ') == "1 2 3 4 5 6" ]] || complain "steps: $(cat a/log.jsonl)"
[[ $(key a epoch epoch | paste -sd' ') == "1 2" ]] || complain "epochs: $(cat a/log.jsonl)"
for name in train_loss train_top1 test_loss test_top1 test_top5 images_per_second lr seconds; do
  [[ $(key a epoch "$name") =~ [0-9] ]] || complain "no $name in an epoch's line"
done
[[ $(key a end status) == '"finished"' ]] || complain "no end in the log"
expect 2 "[--run-dir]" --config config

# Without --run-dir, the program makes a new folder.
expect 0 "files in runs/synthetic-resnet_preact8-" "${tiny[@]}" --max-steps 1
# The same seed gives the same losses, even if the run has two parts.
expect 0 "epoch 2/2" --config config --run-dir b
[[ $(key a step train_loss) == "$(key b step train_loss)" ]] || complain "same seed, other losses"
expect 0 "done: 3 steps" --config config --run-dir c --max-steps 3
expect 0 "this run continues from c/checkpoints/step-000000003" --config config --run-dir c --resume
[[ $(key a step train_loss) == "$(key c step train_loss)" ]] || complain "a resumed run has other losses"
[[ $(key a epoch test_loss) == "$(key c epoch test_loss)" ]] || complain "a resumed run has other test losses"
[[ $(key c resume step) == 3 ]] || complain "no resume in the log"
expect 0 "test loss" --config config --run-dir c --resume=best --eval-only
expect 0 "starting from the beginning" "${tiny[@]}" --run-dir d --resume --max-steps 1
expect 0 "--seed was" --config config --run-dir c --resume --seed 9
expect 3 "resume with the model and optimizer options" --config config --run-dir c --resume --depth 14
# --resume=RUN starts a new run from RUN's checkpoint, but only in an empty folder.
expect 2 "a folder of its own" --config config --run-dir b --resume=c
expect 0 "this run continues from" --config config --run-dir e --resume=c/ --epochs 3
[[ -d e/checkpoints/step-000000009 && ! -d c/checkpoints/step-000000009 ]] || complain "wrote into another run's folder"
# --load-epoch with an earlier epoch removes the later checkpoints.
expect 0 "epoch 3/3" "${tiny[@]}" --epochs 3 --model-prefix m --audit
steps=(m/checkpoints/step-*)
[[ ${#steps[@]} == 3 ]] || complain "--model-prefix keeps every checkpoint: $(ls m/checkpoints)"
expect 0 "this run continues from m/checkpoints/step-000000003" "${tiny[@]}" --epochs 3 --model-prefix m --load-epoch 1 --audit \
  --max-steps 4
[[ ! -e m/checkpoints/step-000000009 ]] || complain "a checkpoint of the time after the step gone back to"
grep -qx "rollback 1 4" m/audit-rank0.txt || complain "no rollback in the audit: $(cut -c1-20 m/audit-rank0.txt)"
expect 3 "[--load-epoch]" "${tiny[@]}" --model-prefix m --load-epoch 7

# Another algorithm for convolutions changes only the rounding. Unknown names and unsuitable backends are refused.
expect 2 "[--convolution]" "${tiny[@]}" --convolution fft
expect 2 "onednn or eigen together with convolution 'winograd'" "${tiny[@]}" --backend reference --convolution winograd --max-steps 1
for way in direct winograd; do
  expect 0 "done: 3 steps" --config config --run-dir "way-$way" --convolution "$way" --max-steps 3
done
paste <(key way-direct step train_loss) <(key way-winograd step train_loss) | awk '
  NF != 2 || ($1 - $2) ^ 2 > (1e-3 * $1) ^ 2 { print "losses of direct and winograd: " $0; bad = 1 }
  END { exit bad || NR != 3 }' || complain "winograd does not train as direct does"

# The tuner prints its measurements and stores them for the next run. It ignores a file that is damaged, or that belongs
# to another processor or version.
tune=(--config config --convolution tune --max-steps 1)
if grep -qw avx2 /proc/cpuinfo && [[ ${TUTTI_ISA:-} != baseline ]]; then
  export XDG_CACHE_HOME=$work/kept
  expect 0 " ms, winograd " "${tune[@]}" --run-dir tuned-1
  grep "^convolution tune: " out | sed 's/ (direct.*//' | sort -u >chosen
  [[ $(wc -l <chosen) -ge 9 ]] || complain "not every convolution and pass was measured: $(cat chosen)"
  expect 0 "chosen in an earlier run" "${tune[@]}" --run-dir tuned-2
  grep -q "measured again\| ms, winograd" out && complain "measured what was kept: $(cat out)"
  diff chosen <(grep "^convolution tune: " out | sed 's/, chosen in an earlier run$//' | sort -u) || complain "another choice than the one kept"
  files=("$XDG_CACHE_HOME"/tutti/convolution/*.choice)
  printf 'x' >>"${files[0]}"
  sed -i 's/| tutti [0-9.]*$/| tutti 0.0.0/' "${files[1]}"
  expect 0 "${files[0]} is damaged" "${tune[@]}" --run-dir tuned-3
  grep -qF "${files[1]} is damaged or belongs to another" out || complain "took the choice of another version"
  [[ $(grep -c "chosen in an earlier run" out) == $((${#files[@]} - 2)) ]] || complain "did not use what was whole: $(cat out)"
  XDG_CACHE_HOME=/dev/null
  expect 0 "not stored" "${tune[@]}" --run-dir tuned-4
  unset XDG_CACHE_HOME
fi
TUTTI_ISA=baseline expect 2 "AVX2 or AVX-512 together with convolution 'tune'" "${tune[@]}" --run-dir tuned-5
expect 2 "onednn or eigen together with convolution 'tune'" "${tune[@]}" --backend reference --run-dir tuned-6

# With this rate the loss becomes infinite.
expect 6 "[step " "${tiny[@]}" --run-dir n --lr 1e6 --warmup-epochs 0 --epochs 20
[[ $(key n end status) == '"failed"' ]] || complain "no failure in the log"

# Simulates a disk that becomes full after the start of a run, by a file limit of 200 KiB.
"$program" "${tiny[@]}" --epochs 1 --run-dir f >/dev/null
(
  trap '' XFSZ
  export GCOV_PREFIX=$PWD/counts # otherwise the file limit cuts off the counts of tests/coverage.py
  ulimit -f 200
  expect 3 "checkpoint not written" "${tiny[@]}" --epochs 2 --run-dir f --resume
  grep -q "done: 6 steps, state NOT SAVED" out || complain "a full disk is not told of at the end: $(tail -n 3 out)"
  exit "$failures"
) || complain "a full disk stops the training"
[[ $(key f epoch epoch | paste -sd' ') == "1 2" ]] || complain "a full disk stops the training: $(cat f/log.jsonl)"
grep -q '"event":"warning"' f/log.jsonl || complain "no warning in the log"
[[ $(key f end status | paste -sd' ') == '"finished" "failed"' ]] || complain "the log's end: $(tail -n 1 f/log.jsonl)"
expect 0 "this run continues from f/checkpoints/step-000000003" "${tiny[@]}" --epochs 2 --run-dir f --resume

# After a signal the program finishes the step, saves and exits.
for signal in INT:130 TERM:143; do
  rm -rf s
  "$program" "${tiny[@]}" --epochs 100000 --evaluate-every 100000 --save-period 0 --disp-batches 1 --run-dir s >out 2>&1 &
  pid=$!
  for ((i = 0; i < 600; ++i)); do
    grep -q '"event":"step"' s/log.jsonl 2>/dev/null && break
    sleep 0.1
  done
  # While the program runs, no other process may use its folder.
  if [[ $signal == INT:* ]]; then
    expect 2 "[--run-dir] expected a folder that no other process writes to" "${tiny[@]}" --run-dir s --resume --max-steps 1
  fi
  kill "-${signal%:*}" "$pid"
  got=0
  wait "$pid" || got=$?
  [[ $got == "${signal#*:}" ]] || complain "SIG${signal%:*}: status $got: $(tail -n 3 out)"
  last=$(key s end step)
  [[ $(key s end status) == '"interrupted"' && -e s/checkpoints/step-$(printf %09d "$last")/COMPLETE ]] ||
    complain "SIG${signal%:*}: the state of step $last was not saved: $(ls s/checkpoints)"
  expect 0 "done: $((last + 1)) steps" "${tiny[@]}" --epochs 100000 --evaluate-every 100000 --save-period 0 \
    --run-dir s --resume --max-steps $((last + 1))
done

# --save-seconds saves by the clock, and a killed run continues from the checkpoint. The log has the times of a step.
"$program" "${tiny[@]}" --epochs 100000 --evaluate-every 100000 --save-period 0 --save-seconds 0.2 --disp-batches 1 \
  --run-dir k >out 2>&1 &
pid=$!
for ((i = 0; i < 600; ++i)); do
  compgen -G "k/checkpoints/step-*/COMPLETE" >/dev/null && break
  sleep 0.1
done
kill -KILL "$pid"
wait "$pid" || true
last=$(basename "$(compgen -G "k/checkpoints/step-*" | sort | tail -n 1)" | tr -dc 0-9)
expect 0 "this run continues from k/checkpoints/step-$last" "${tiny[@]}" --epochs 100000 --evaluate-every 100000 --save-period 0 \
  --run-dir k --resume --max-steps $((10#$last + 1))
expect 2 "[--save-seconds]" --dataset synthetic --save-seconds -1 --dry-run
for name in data_wait comm_wait compute; do
  [[ $(key a step "$name" | head -n 1) =~ ^[01] && $(key a epoch "$name" | head -n 1) =~ ^[01] ]] ||
    complain "no $name in the log: $(head -n 3 a/log.jsonl)"
done

# Event files for TensorBoard are next to the log by default. The progress line, which a terminal rewrites, is not
# written to a pipe.
compgen -G "a/events.out.tfevents.*" >/dev/null || complain "no file for TensorBoard"
expect 0 "done" "${tiny[@]}" --run-dir t --no-tensorboard --epochs 1
! compgen -G "t/events.out.tfevents.*" >/dev/null || complain "a file for TensorBoard in spite of --no-tensorboard"
! grep -q $'\r' out || complain "a carriage return in a pipe"

# Checkpoints are in one folder, and the log and the event files in another.
expect 0 "files in td, log in ld" "${tiny[@]}" --train_dir td --log_dir ld --epochs 1
[[ $(ls td) == checkpoints && -e ld/log.jsonl ]] || complain "--train_dir and --log_dir: $(ls td ld)"
compgen -G "ld/events.out.tfevents.*" >/dev/null || complain "no file for TensorBoard in --log_dir"
expect 2 "[--log-dir]" "${tiny[@]}" --train_dir td2 --log_dir ld --epochs 1
expect 0 "this run continues from td" "${tiny[@]}" --train_dir td --log_dir ld --epochs 2 --resume
[[ $(key ld epoch epoch | paste -sd' ') == "1 2" ]] || complain "a resumed run's log: $(cat ld/log.jsonl)"

# Options from the environment give a note each.
TUTTI_EPOCHS=1 TUTTI_RUN_DIR=ev expect 0 "--epochs comes from the environment's TUTTI_EPOCHS" "${tiny[@]}"
[[ $(key ev epoch epoch) == 1 ]] || complain "TUTTI_EPOCHS has no effect"
TUTTI_EPOHCS=1 expect 2 "did you mean TUTTI_EPOCHS" "${tiny[@]}"
TUTTI_BATCH_SIZE=0 expect 2 "comes from the environment's TUTTI_BATCH_SIZE" --dataset synthetic --dry-run
TUTTI_LR=0.3 expect 0 "lr comes from the environment's TUTTI_LR" --print-config

# Trains on RecordIO files of PNG images: as a file, as a folder, and with a list file.
python3 - <<'PYTHON'
import os, random, struct, zlib

def png(size, value):
    raw = b"".join(b"\0" + bytes(value(x, y, c) for x in range(size) for c in range(3)) for y in range(size))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))

def record(number, label, image):
    data = struct.pack("<IfQQ", 0, label, number, 0) + image
    return struct.pack("<II", 0xCED7230A, len(data)) + data + b"\0" * (-len(data) % 4)

random.seed(1)
os.mkdir("rec")
def write(path, count, size, classes=10):
    offset, lines = 0, []
    with open(path, "wb") as out:
        for i in range(count):
            r = record(i, i % classes, png(size, lambda x, y, c: 25 * (i % classes) if c == 0 else (x * y * c) % 256))
            lines.append(f"{i}\t{offset}\n")
            offset += out.write(r)
    return lines
write("rec/cifar10_train.rec", 60, 20)
lines = write("rec/cifar10_val.rec", 20, 20)
open("ten.idx", "w").writelines(lines[::2])
write("eleven.rec", 20, 20, 11)
open("sizes.rec", "wb").write(record(0, 0, png(20, lambda *_: 0)) + record(1, 1, png(21, lambda *_: 0)))
PYTHON
records=(--depth 8 --batch-size 20 --threads 2 --epochs 2)
expect 0 "60 training and 20 test images" "${records[@]}" --data-train rec/cifar10_train.rec --data-train-idx '' \
  --data-val rec/cifar10_val.rec --data-val-idx '' --run-dir ra
grep -q "images 3x20x20" out || complain "RecordIO of 20x20 images: $(cat out)"
expect 0 "60 training and 20 test images" "${records[@]}" --data-train rec --data-val rec --run-dir rb
[[ $(key ra epoch test_loss) == "$(key rb epoch test_loss)" ]] || complain "a folder of RecordIO differs from its files"
expect 0 "60 training and 10 test images" "${records[@]}" --data-train rec --data-val rec/cifar10_val.rec \
  --data-val-idx ten.idx --run-dir rc
expect 0 "(20 images)" "${records[@]}" --data-val rec --eval-only --resume --run-dir ra
expect 0 "60 training and 0 test images" "${records[@]}" --data-train rec --run-dir rd
expect 3 "sizes.rec record 1" "${records[@]}" --data-train sizes.rec --run-dir re
expect 3 "eleven.rec record 10" "${records[@]}" --data-train eleven.rec --run-dir re
expect 0 "done" "${records[@]}" --data-train eleven.rec --num-classes 11 --run-dir rf
expect 3 "[--data-train] expected a .rec file" "${records[@]}" --data-train nowhere --run-dir re
head -c 3000 rec/cifar10_train.rec >cut.rec
expect 3 "cut.rec record" "${records[@]}" --data-train cut.rec --run-dir re

finish
