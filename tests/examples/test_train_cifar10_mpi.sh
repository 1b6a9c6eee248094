#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# waits
# Tests train_cifar10 as several processes under mpirun.
set -uo pipefail
program=${TUTTI_BUILD_DIR:?}/examples/train_cifar10
if [[ ! -x $program ]]; then
  echo "SKIP: no $program; the examples or CLI11 are missing"
  exit 77
fi
command -v mpirun >/dev/null || { echo "FAILED: no mpirun (Debian: apt-get install openmpi-bin libopenmpi-dev)" && exit 1; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
unset TUTTI_DATA
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
tiny=(--dataset synthetic --num-examples 101 --image-shape "3,16,16" --depth 8 --batch-size 16 --threads 1 --seed 3
  --disp-batches 1)
mpi=(mpirun --oversubscribe --bind-to none --mca btl self,vader,tcp)
failures=0
complain() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
key() { sed -n "/\"event\":\"$2\"/s/.*\"$3\":\([^,}]*\).*/\1/p" "$1/log.jsonl"; }
# seen FOLDER EPOCH: prints every sample index of that epoch in the audit files, sorted, one per line.
seen() { sed -n "s/^$2 [0-9]* [0-9]*: //p" "$1"/audit-rank*.txt | tr ' ' '\n' | sort -n; }

# begun FOLDER: waits for the second epoch of the run.
begun() {
  for _ in $(seq 300); do grep -qs '"epoch":2' "$1/log.jsonl" && return || sleep 0.1; done
  complain "$1 did not begin: $(tail -n 5 out)"
}

for ranks in 1 2 3; do
  "${mpi[@]}" -np $ranks "$program" "${tiny[@]}" --epochs 2 --audit --run-dir "r$ranks" --strategy mpi >out 2>&1 ||
    complain "$ranks ranks: status $?: $(tail -n 5 out)"
  [[ $(grep -c "epoch 2/2" out) == 1 ]] || complain "$ranks ranks: not one line for the epoch: $(cat out)"
  for epoch in 0 1; do
    [[ $(seen "r$ranks" $epoch) == "$(seq 0 100)" ]] || complain "$ranks ranks, epoch $epoch: not every image once"
  done
  [[ $(ls r$ranks | grep -c audit) == "$ranks" ]] || complain "$ranks ranks: audit files: $(ls "r$ranks")"
done
grep -q '"world":3' r3/log.jsonl || complain "the log does not say 3 ranks"
[[ $(key r2 step step | tail -n 1) == 8 ]] || complain "2 ranks of 16 images: $(key r2 step step | tail -n 1) steps"

# refused WHAT TEXT COMMAND...: checks that the command ends with status 2, prints the text and makes no new folder.
refused() {
  local what=$1 text=$2
  shift 2
  "$@" --run-dir refused >out 2>&1
  [[ $? == 2 ]] || complain "$what: not status 2: $(tail -n 5 out)"
  grep -qF -- "$text" out || complain "$what: it does not say '$text': $(cat out)"
  [[ ! -e refused ]] || { complain "$what: there is a run folder" && rm -rf refused; }
}
train=("$program" "${tiny[@]}" --epochs 1)
# A process refuses to train if the environment gives it a size or rank by hand, another launcher, or another role.
refused "a size by hand" "[environment TUTTI_RANK]" env TUTTI_SIZE=2 "${train[@]}"
refused "a rank by hand" "'tutti-launch -n 2 --launcher mpi' and 'mpirun -np 2'" env TUTTI_RANK=0 TUTTI_SIZE=2 "${train[@]}"
refused "an invalid size" "[environment TUTTI_SIZE] expected an integer from 1 to 16777216, got 'abc'" \
  env TUTTI_SIZE=abc "${train[@]}"
refused "a rank beyond" "[environment TUTTI_RANK] expected an integer from 0 to 1, got '9'" \
  env TUTTI_RANK=9 TUTTI_SIZE=2 "${train[@]}"
refused "mpirun's size" "[environment OMPI_COMM_WORLD_SIZE]" env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=x "${train[@]}"
for role in server scheduler; do
  refused "TUTTI_ROLE=$role" "[environment TUTTI_ROLE] expected worker" env TUTTI_ROLE=$role "${train[@]}"
  refused "DMLC_ROLE=$role" "[environment DMLC_ROLE] expected worker" env DMLC_ROLE=$role DMLC_NUM_WORKER=2 "${train[@]}"
done
refused "another launcher" "tutti-launch -n 2 starts as many" env DMLC_ROLE=worker DMLC_NUM_WORKER=2 "${train[@]}"
refused "srun" "mpirun -np 2" env SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 "${train[@]}"
refused "solo, twice" "[--strategy] expected mpi, gloo, nccl or ps for the 2 processes" "${mpi[@]}" -np 2 "${train[@]}" --strategy solo
# A single variable that was left in a shell has no effect.
"${train[@]}" --run-dir lone >out 2>&1 || complain "alone: $(tail -n 5 out)"
DMLC_NUM_WORKER=4 DMLC_PS_ROOT_URI=a "${train[@]}" --run-dir stray >out 2>&1 || complain "DMLC_NUM_WORKER: $(tail -n 5 out)"
[[ $(key lone start world) == 1 && $(key stray start world) == 1 ]] || complain "alone: not one rank"
[[ $(key lone step train_loss) == "$(key stray step train_loss)" ]] || complain "a stray DMLC_NUM_WORKER changes the run"

# tutti-launch without further options starts ranks that train one net.
launch=$TUTTI_BUILD_DIR/tools/tutti-launch
"$launch" -n 2 "${train[@]}" --run-dir launched >out 2>&1 || complain "tutti-launch: $(tail -n 5 out)"
[[ $(key launched start world) == 2 ]] || complain "tutti-launch: not one start of two ranks: $(key launched start world)"
refused "servers" "[--num-servers] expected none, because" "$launch" -n 2 -s 2 "${train[@]}" --strategy mpi
refused "servers in a script" "[environment TUTTI_ROLE] expected worker" \
  "$launch" -n 1 -s 1 sh -c 'exec "$@" --strategy solo --run-dir refused$([ $TUTTI_ROLE = server ] || echo -not)' sh "${train[@]}"
rm -rf refused-not

# The automatic strategy, and then the options that select another path, bf16 on the wire, or another bucket size.
"${mpi[@]}" -np 2 "$program" "${tiny[@]}" --epochs 1 --run-dir auto >out 2>&1 || complain "auto: $(tail -n 5 out)"
grep -q "strategy mpi, 2 ranks" out || complain "auto: $(head -n 3 out)"
for option in --no-shared-memory --no-hierarchical "--comm-wire bf16" "--kv-store dist_device_sync" "--bucket-mib 1"; do
  # shellcheck disable=SC2086
  "${mpi[@]}" -np 2 "$program" "${tiny[@]}" --epochs 1 $option --run-dir "o${option//[ -]/_}" >out 2>&1 ||
    complain "$option: $(tail -n 5 out)"
done

# Variables of Horovod that have a meaning in tutti take effect. One message names the remaining ones.
"${mpi[@]}" -np 2 -x HOROVOD_FUSION_THRESHOLD=2097152 -x HOROVOD_CYCLE_TIME=5 -x HOROVOD_TIMELINE=t.json "$program" \
  "${tiny[@]}" --epochs 1 --run-dir horovod >out 2>&1 || complain "Horovod's variables: $(tail -n 5 out)"
grep -q '"bucket-mib":2,' horovod/log.jsonl || complain "HOROVOD_FUSION_THRESHOLD: $(head -n 1 horovod/log.jsonl)"
[[ $(grep -c "no effect: HOROVOD_CYCLE_TIME, HOROVOD_TIMELINE (strategy mpi)" out) == 1 ]] ||
  complain "Horovod's variables are not named: $(cat out)"

# The same seed gives the same bits.
for run in a b; do
  "${mpi[@]}" -np 2 "$program" "${tiny[@]}" --epochs 2 --run-dir same-$run >out 2>&1 || complain "same: $(tail -n 5 out)"
done
[[ $(key same-a step train_loss) == "$(key same-b step train_loss)" ]] || complain "the same run twice gave other losses"

# If ranks have different options, one message names the rank and the difference, the exit code is 2, and no process is
# left.
"${mpi[@]}" -np 1 "$program" "${tiny[@]}" --run-dir d --lr 0.1 : -np 1 "$program" "${tiny[@]}" --run-dir d --lr 0.2 >out 2>&1
[[ $? == 2 ]] || complain "other options: not status 2: $(tail -n 5 out)"
grep -q -- "--lr" out || complain "other options: $(cat out)"
grep -q "rank 1 on " out || complain "other options, no rank: $(cat out)"

# A run folder that exists, and an option that is wrong on all ranks.
"${mpi[@]}" -np 2 "$program" "${tiny[@]}" --run-dir r2 >out 2>&1
[[ $? == 2 ]] || complain "a run folder in use: not status 2: $(tail -n 5 out)"

# After a signal the ranks finish the step and save. The resumed run gives the same result as an uninterrupted run.
"${mpi[@]}" -np 2 "$program" "${tiny[@]}" --epochs 3 --audit --run-dir whole >out 2>&1 || complain "whole: $(tail -n 5 out)"
"${mpi[@]}" -np 2 "$program" "${tiny[@]}" --epochs 3 --audit --max-steps 5 --run-dir cut >out 2>&1 || complain "cut: $(tail -n 5 out)"
"${mpi[@]}" -np 2 "$program" "${tiny[@]}" --epochs 3 --audit --run-dir cut --resume >out 2>&1 || complain "resumed: $(tail -n 5 out)"
[[ $(key whole step train_loss | tail -n 3) == "$(key cut step train_loss | tail -n 3)" ]] ||
  complain "a resumed run has other losses: $(key whole step train_loss | tail -n 3 | xargs) and $(key cut step train_loss | tail -n 3 | xargs)"
for epoch in 0 1 2; do
  [[ $(seen cut $epoch) == "$(seq 0 100)" ]] || complain "resumed, epoch $epoch: not every image once"
done
# After SIGTERM mpirun stops reading from its ranks, passes the signal on a second later, and kills the remaining ranks
# after another second. Meanwhile a rank with much output would block.
quiet=("${tiny[@]/#101/4000}")
quiet[-1]=100000
"${mpi[@]}" -np 2 "$program" "${quiet[@]}" --epochs 100000 --run-dir sig >out 2>&1 &
job=$!
begun sig
kill -TERM "$job"
wait "$job"
grep -q '"status":"interrupted"' sig/log.jsonl || complain "SIGTERM: $(tail -n 2 sig/log.jsonl) $(tail -n 5 out)"
ls sig/checkpoints/*/COMPLETE >/dev/null || complain "SIGTERM: no checkpoint"

# --save-seconds follows the clock of rank 0. The log has the share of the time that a rank waited for the other rank.
"${mpi[@]}" -np 2 "$program" "${tiny[@]}" --epochs 100000 --save-period 0 --save-seconds 0.2 --run-dir clock >out 2>&1 &
job=$!
for ((i = 0; i < 600; ++i)); do
  ls clock/checkpoints/*/COMPLETE >/dev/null 2>&1 && break
  sleep 0.1
done
kill -KILL "$job"
wait "$job"
for ((i = 0; i < 100; ++i)); do
  pgrep -f "$work" >/dev/null || break
  sleep 0.1
done
ls clock/checkpoints/*/COMPLETE >/dev/null || complain "--save-seconds: no checkpoint"
key clock step comm_wait | grep '[1-9]' >/dev/null || complain "no time waited for the other rank: $(head -n 3 clock/log.jsonl)"

# Fewer ranks continue from an earlier state. The audit files of all ranks roll back the later work. once FOLDER EPOCH:
# like seen, but only for lines that no rollback removes.
once() {
  awk -v want="$2" 'FNR == 1 { file++ }
    $1 == "rollback" { for (k in line) { split(k, p, " "); if (p[1] == file && (p[2] > $2 || (p[2] == $2 && p[3] >= $3))) delete line[k] } next }
    { e = $1; s = $2; $1 = $2 = $3 = ""; line[file " " e " " s] = $0 }
    END { for (k in line) { split(k, p, " "); if (p[2] == want) { n = split(line[k], i, " "); for (j = 1; j <= n; j++) print i[j] } } }' \
    "$1"/audit-rank*.txt | sort -n
}
"${mpi[@]}" -np 3 "$program" "${tiny[@]}" --epochs 3 --audit --max-steps 5 --run-dir fewer >out 2>&1 || complain "fewer: $(tail -n 5 out)"
printf '%s' TTPROGR1 >slot # a progress file of tutti-launch: its mark, the job, and 48 more bytes
printf '\x1f\0\0\0\0\0\0\0' >>slot && head -c 48 /dev/zero >>slot
TUTTI_REPORT=$PWD/slot TUTTI_JOB=1f "${mpi[@]}" -np 2 "$program" "${tiny[@]}" --epochs 3 --audit --run-dir fewer \
  --resume=fewer/checkpoints/step-000000003 >out 2>&1 || complain "fewer, resumed: $(tail -n 5 out)"
for epoch in 0 1 2; do
  [[ $(once fewer $epoch) == "$(seq 0 100)" ]] || complain "3 ranks, then 2, epoch $epoch: not every image once: $(once fewer $epoch | uniq -c | awk '$1 != 1' | xargs)"
done
# The report to the launcher counts steps from the beginning of the job: 3 steps of 48 images and 8 of 32.
[[ $(od -An -tu8 -j16 -N8 slot | awk '{ print int($1 / 2 ^ 24) }') == 11 ]] || complain "the report says $(od -An -tx8 -j16 -N8 slot)"

# A healthy job must survive a disk that takes longer for a checkpoint than the rank timeout.
if [[ -z ${TUTTI_SANITIZE:-} ]]; then
  echo '#include <unistd.h>
    extern "C" int fsync(int) { return usleep(900000); }' >slow.cpp
  "${TUTTI_CXX:-c++}" -shared -fPIC -o slow.so slow.cpp || complain "no slow disk: $?"
  "${mpi[@]}" -np 2 -x LD_PRELOAD="$PWD/slow.so" "$program" "${tiny[@]}" --epochs 1 --comm-deadline 2 --run-dir slow >out 2>&1 ||
    complain "a slow disk: status $?: $(tail -n 5 out)"
  ls slow/checkpoints/*/COMPLETE >/dev/null || complain "a slow disk: no checkpoint"
fi

# A killed rank ends the job.
"${mpi[@]}" -np 2 "$program" "${tiny[@]}" --epochs 100000 --run-dir kill >out 2>&1 &
job=$!
begun kill
pkill -KILL -P "$job" -o train_cifar10
wait "$job" && complain "a killed rank: status 0"
pgrep -f "$work" >/dev/null && complain "processes are left"
((failures == 0))
