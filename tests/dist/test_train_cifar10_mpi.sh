#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# processors: 2
# train_cifar10 as several processes under mpirun.
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
# seen FOLDER EPOCH: every index of that epoch in the audit files, sorted, once a line.
seen() { sed -n "s/^$2 [0-9]* [0-9]*: //p" "$1"/audit-rank*.txt | tr ' ' '\n' | sort -n; }

# begun FOLDER: waits for its second epoch.
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

# The automatic strategy, the plain path, the pooled one, bf16 on the wire.
"${mpi[@]}" -np 2 "$program" "${tiny[@]}" --epochs 1 --run-dir auto >out 2>&1 || complain "auto: $(tail -n 5 out)"
grep -q "strategy mpi, 2 ranks" out || complain "auto: $(head -n 3 out)"
for option in --no-shared-memory --no-hierarchical "--comm-wire bf16" "--kv-store dist_device_sync" "--bucket-mib 1"; do
  # shellcheck disable=SC2086
  "${mpi[@]}" -np 2 "$program" "${tiny[@]}" --epochs 1 $option --run-dir "o${option//[ -]/_}" >out 2>&1 ||
    complain "$option: $(tail -n 5 out)"
done

# The same seed gives the same bits.
for run in a b; do
  "${mpi[@]}" -np 2 "$program" "${tiny[@]}" --epochs 2 --run-dir same-$run >out 2>&1 || complain "same: $(tail -n 5 out)"
done
[[ $(key same-a step train_loss) == "$(key same-b step train_loss)" ]] || complain "the same run twice gave other losses"

# Ranks that do not agree: one message that names the rank and the difference, exit code 2, nothing left.
"${mpi[@]}" -np 1 "$program" "${tiny[@]}" --run-dir d --lr 0.1 : -np 1 "$program" "${tiny[@]}" --run-dir d --lr 0.2 >out 2>&1
[[ $? == 2 ]] || complain "other options: not status 2: $(tail -n 5 out)"
grep -q -- "--lr" out || complain "other options: $(cat out)"
grep -q "rank 1 on " out || complain "other options, no rank: $(cat out)"

# An option that is wrong on all of them, a folder in use.
"${mpi[@]}" -np 2 "$program" "${tiny[@]}" --run-dir r2 >out 2>&1
[[ $? == 2 ]] || complain "a run folder in use: not status 2: $(tail -n 5 out)"

# A signal: the step is finished, the state saved; resuming ends as if nothing had been.
"${mpi[@]}" -np 2 "$program" "${tiny[@]}" --epochs 3 --audit --run-dir whole >out 2>&1 || complain "whole: $(tail -n 5 out)"
"${mpi[@]}" -np 2 "$program" "${tiny[@]}" --epochs 3 --audit --max-steps 5 --run-dir cut >out 2>&1 || complain "cut: $(tail -n 5 out)"
"${mpi[@]}" -np 2 "$program" "${tiny[@]}" --epochs 3 --audit --run-dir cut --resume >out 2>&1 || complain "resumed: $(tail -n 5 out)"
[[ $(key whole step train_loss | tail -n 3) == "$(key cut step train_loss | tail -n 3)" ]] ||
  complain "a resumed run has other losses: $(key whole step train_loss | tail -n 3 | xargs) and $(key cut step train_loss | tail -n 3 | xargs)"
for epoch in 0 1 2; do
  [[ $(seen cut $epoch) == "$(seq 0 100)" ]] || complain "resumed, epoch $epoch: not every image once"
done
"${mpi[@]}" -np 2 "$program" "${tiny[@]}" --epochs 100000 --run-dir sig >out 2>&1 &
job=$!
begun sig
# What mpirun does with SIGTERM: it hands it on and kills who is still there a little later.
kill -TERM "$job"
wait "$job"
grep -q '"status":"interrupted"' sig/log.jsonl || complain "SIGTERM: $(tail -n 2 sig/log.jsonl) $(tail -n 5 out)"
ls sig/checkpoints/*/COMPLETE >/dev/null || complain "SIGTERM: no checkpoint"

# A rank that is killed ends the job.
"${mpi[@]}" -np 2 "$program" "${tiny[@]}" --epochs 100000 --run-dir kill >out 2>&1 &
job=$!
begun kill
pkill -KILL -P "$job" -o train_cifar10
wait "$job" && complain "a killed rank: status 0"
pgrep -f "$work" >/dev/null && complain "processes are left"
((failures == 0))
