#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# waits
# Tests train_cifar10 over Gloo, started by tutti-launch.
set -uo pipefail
# shellcheck source=launched.sh
. "$(dirname "${BASH_SOURCE[0]}")/launched.sh"
launched gloo libgloo-dev

# The shortest command.
"$launch" -n 3 "$program" --strategy gloo --dataset synthetic --num-examples 64 --depth 8 --batch-size 8 --epochs 1 >out 2>&1 ||
  complain "three ranks: status $?: $(tail -n 5 out)"
grep -q "strategy gloo, 3 ranks" out || complain "three ranks: another strategy: $(cat out)"

# The weights are the same as over MPI, because the ranks of a host sum in the order of their numbers.
weights() { sha256sum <"$1/checkpoints/step-000000008/model.safetensors"; }
run() { # run FOLDER OPTION...: trains with two ranks over Gloo into the folder
  local folder=$1
  shift
  "$launch" -n 2 "$program" "${tiny[@]}" --epochs 2 --strategy gloo --run-dir "$folder" "$@" >out 2>&1 ||
    complain "$folder: status $?: $(tail -n 5 out)"
}
if "$program" --strategy mpi 2>&1 | grep "install libopenmpi-dev" >/dev/null; then
  echo "no MPI to compare with"
else
  "$launch" -n 2 "$program" "${tiny[@]}" --epochs 2 --run-dir over_mpi --strategy mpi >out 2>&1 ||
    complain "over MPI: status $?: $(tail -n 5 out)"
  run shared
  [[ $(weights shared) == "$(weights over_mpi)" ]] || complain "other weights than over MPI"
  # A sum of two numbers does not depend on their order.
  run plain --no-shared-memory
  [[ $(weights plain) == "$(weights over_mpi)" ]] || complain "--no-shared-memory: other weights than over MPI"
  run flat --no-hierarchical
  [[ $(weights flat) == "$(weights over_mpi)" ]] || complain "--no-hierarchical: other weights than over MPI"
  run bf16 --no-shared-memory --comm-wire bf16
  [[ $(weights bf16) != "$(weights over_mpi)" ]] || complain "--comm-wire bf16 does nothing"
fi
GLOO_SOCKET_IFNAME=lo run interface --no-shared-memory
# --resume continues the run with another number of ranks.
"$launch" -n 2 "$program" "${tiny[@]}" --epochs 1 --run-dir on --strategy gloo >out 2>&1 &&
  "$launch" -n 3 "$program" "${tiny[@]}" --epochs 2 --run-dir on --strategy gloo --resume >out 2>&1 ||
  complain "resuming: $(tail -n 5 out)"
grep -q "this run continues from" out || complain "it began anew: $(cat out)"

# refused WHAT TEXT COMMAND...: checks that the command ends with status 2, prints the text and makes no new folder.
refused() {
  local what=$1 text=$2
  shift 2
  "$@" "${tiny[@]}" --epochs 1 --run-dir refused >out 2>&1
  [[ $? == 2 ]] || complain "$what: not status 2: $(tail -n 5 out)"
  grep -qF -- "$text" out || complain "$what: it does not say '$text': $(cat out)"
  [[ ! -e refused ]] || { complain "$what: there is a run folder" && rm -rf refused; }
}
refused "nobody launched it" "hint: put 'tutti-launch -n N' before the program" "$program" --strategy gloo
if command -v mpirun >/dev/null; then
  refused "mpirun" "got mpirun" mpirun --oversubscribe -np 2 "$program" --strategy gloo
fi
refused "another launcher" "another launcher" env TUTTI_RANK=0 TUTTI_SIZE=2 "$program" --strategy gloo
refused "servers" "expected none, because" "$launch" -n 2 -s 1 "$program" --strategy gloo
refused "no such interface" "[environment GLOO_SOCKET_IFNAME] expected a network interface" \
  env GLOO_SOCKET_IFNAME=none0 "$launch" -n 2 "$program" --strategy gloo
refused "other options on a rank" "--lr" "$launch" -n 2 sh -c "exec \"\$@\" --lr 0.\$((TUTTI_RANK + 1))" sh "$program" --strategy gloo

# process RANK: prints the process id of the rank.
process() {
  local p
  for p in $(pgrep -f "^$program.*--run-dir long"); do
    tr '\0' '\n' <"/proc/$p/environ" | grep -xF "TUTTI_STATE_DIR=$TUTTI_STATE_DIR" >/dev/null &&
      tr '\0' '\n' <"/proc/$p/environ" | grep -xF "TUTTI_RANK=$1" >/dev/null && echo "$p"
  done
}
# If a rank is killed or stopped, the launcher and the remaining ranks name it, and all of them end.
for signal in KILL STOP; do
  for way in --shared-memory --no-shared-memory; do
    rm -rf long
    "$launch" -n 3 --rank-timeout 3 "$program" "${tiny[@]}" --epochs 100000 --run-dir long --strategy gloo "$way" >out 2>&1 &
    job=$!
    for ((i = 0; i < 600; ++i)); do
      grep -s '"step":5,' long/log.jsonl >/dev/null && break
      sleep 0.1
    done
    victim=$(process 2)
    [[ -n $victim ]] || complain "$signal $way: no rank 2: $(cat out)"
    start=$SECONDS
    kill "-$signal" "$victim"
    wait "$job"
    status=$?
    [[ $status == 5 ]] || complain "$signal $way: status $status: $(tail -n 5 out)"
    ((SECONDS - start < 20)) || complain "$signal $way: it took $((SECONDS - start)) s"
    grep -qE "^tutti-launch: \[worker 2 on localhost\] .*SIG$signal" out || complain "$signal $way: not named: $(cat out)"
    grep -qE "\[[01]\] .*the loss of worker 2 on localhost" out || complain "$signal $way: not named by a rank: $(cat out)"
  done
done
((failures == 0))
