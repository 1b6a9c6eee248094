#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# processors: 2
# waits
# Tests the tutorial's training program under tutti-launch with each name of a strategy: all started processes take
# part, and the servers end with the workers.
set -uo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh" training
launch=$TUTTI_BUILD_DIR/tools/tutti-launch
[[ -x $launch ]] || { echo "SKIP: no $launch" && exit 77; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TUTTI_STATE_DIR=$work/state
unset GLOO_SOCKET_IFNAME DMLC_ROLE DMLC_NUM_WORKER DMLC_NUM_SERVER

# has STRATEGY: succeeds if this build has the strategy.
has() { ! "$program" none "$1" 2>&1 | grep -q "and build again"; }

runs=0
# trains WORD STRATEGY WORKERS SERVERS: checks that the word selects this strategy. SERVERS "-": without -s.
trains() {
  local word=$1 strategy=$2 workers=$3 servers=$4 run got
  has "$strategy" || { echo "no strategy $strategy: '$word' was not tested" && return; }
  runs=$((runs + 1))
  run=run$runs
  local -a start=(-n "$workers")
  [[ $servers == - ]] || start+=(-s "$servers")
  timeout 300 "$launch" "${start[@]}" "$program" "$run" "$word" >out 2>&1
  got=$?
  [[ $got == 0 ]] || { complain "$word, $workers workers, $servers servers: status $got: $(tail -n 5 out)" && return; }
  [[ $(grep -c "epoch 3: " out) == 1 ]] || complain "$word: not one line of epoch 3: $(cat out)"
  local name=$strategy
  [[ $strategy == ps ]] && name="parameter server"
  [[ $strategy == ps_async ]] && name="asynchronous parameter server"
  grep -q "$workers ranks: $name" out || complain "$word: another strategy than $strategy: $(cat out)"
  grep -qE "epoch 3: .* top-1 (9[0-9]|100)\." out || complain "$word: it does not learn: $(cat out)"
  # Workers that do not wait for each other count the steps of all workers.
  local steps=48
  [[ $strategy == ps_async ]] && steps=$((48 * workers))
  [[ -d $run/checkpoints/step-$(printf %09d $steps) ]] || complain "$word: no state after $steps steps: $(ls $run/checkpoints)"
}
# weights FOLDER: prints the checksum of the tensors. The header before them is left out, because it has the run's
# folder.
weights() {
  local file=$1/checkpoints/step-000000048/model.safetensors
  tail -c "+$(($(od -An -t u8 -N 8 "$file") + 9))" "$file" | sha256sum
}

trains solo solo 1 -
alone=run$runs
trains auto solo 1 -
trains local solo 1 -
trains device solo 1 -
trains dist_async solo 1 0
trains gloo gloo 2 -
trains mpi mpi 2 -
trains auto mpi 2 -
trains dist_sync mpi 2 -
trains dist_device_sync mpi 2 -
trains dist_sync_device mpi 2 0
if has ps; then
  trains ps ps 2 1
  first=run$runs
  trains ps ps 2 2
  second=run$runs
  [[ $(weights "$first") == "$(weights "$second")" ]] || complain "ps: other weights with 2 servers than with 1"
  trains ps ps 1 -
  trains auto ps 2 1
  trains dist_sync ps 2 1
  trains dist_device_sync ps 1 2
  trains ps_async ps_async 1 1
  [[ $(weights run$runs) == "$(weights "$alone")" ]] || complain "ps_async with one worker: other weights than alone"
  trains ps_async ps_async 1 2
  [[ $(weights run$runs) == "$(weights "$alone")" ]] || complain "ps_async with two servers: other weights than alone"
  trains ps-async ps_async 2 2
  trains dist_async ps_async 2 -
  # The command finds the finished run, which has no more work.
  "$launch" -n 2 -s 1 "$program" run$runs dist_async >out 2>&1 || complain "again: status $?: $(tail -n 5 out)"
  grep -q "going on after step 96" out || complain "again: it began anew: $(cat out)"

  # The strategy mpi does not support the role of a server.
  TUTTI_ROLE=server "$program" lone mpi >out 2>&1
  [[ $? == 2 ]] || complain "a server of mpi: no status 2: $(cat out)"
  grep -qF "[make_strategy] expected a strategy with servers" out || complain "a server of mpi: $(cat out)"
  [[ ! -e lone ]] || complain "a server of mpi made a run folder"
fi
finish
