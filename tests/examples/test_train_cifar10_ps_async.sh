#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# waits
# Tests train_cifar10 with parameter servers that own the weights, started by tutti-launch.
set -uo pipefail
# shellcheck source=launched.sh
. "$(dirname "${BASH_SOURCE[0]}")/launched.sh"
launched ps libzmq3-dev
weights() { sha256sum <"$1/model.safetensors"; }

# One worker gives the same bits as a process that trains alone, for any number of servers.
"$program" "${tiny[@]}" --epochs 2 --run-dir alone >out 2>&1 || complain "alone: $(tail -n 5 out)"
for servers in 1 3; do
  MXNET_KVSTORE_BIGARRAY_BOUND=10000 "$launch" -n 1 -s $servers "$program" "${tiny[@]}" --epochs 2 \
    --run-dir "one$servers" --strategy ps_async >out 2>&1 || complain "$servers servers: status $?: $(tail -n 5 out)"
  grep -q "note: asynchronous parameter server over windows, $servers server" out || complain "not said: $(cat out)"
  [[ $(weights "one$servers/checkpoints/step-000000014") == "$(weights alone/checkpoints/step-000000014)" ]] ||
    complain "$servers servers: other weights than alone"
done

# Two-bit gradients change the result, and each threshold gives another result.
for threshold in 0.5 0.1; do
  "$launch" -n 1 -s 1 "$program" "${tiny[@]}" --epochs 2 --run-dir "two_bits$threshold" --strategy ps_async --gc-type 2bit \
    --gc-threshold $threshold >out 2>&1 || complain "two bits: $(tail -n 5 out)"
done
at=checkpoints/step-000000014
[[ $(weights two_bits0.5/$at) != "$(weights alone/$at)" ]] || complain "--gc-type 2bit does nothing"
[[ $(weights two_bits0.5/$at) != "$(weights two_bits0.1/$at)" ]] || complain "--gc-threshold does nothing"

# With --dry-run and --test-io the workers do not train, and the servers end with them.
for only in --dry-run "--test-io 1"; do
  # shellcheck disable=SC2086
  "$launch" -n 2 -s 1 "$program" "${tiny[@]}" --epochs 1 --run-dir shown --strategy ps_async $only >out 2>&1 ||
    complain "$only: status $?: $(tail -n 5 out)"
  [[ ! -e shown ]] || complain "$only: there is a run folder"
done

# Without -s, a job has as many servers as workers. The steps of all workers count, each sample is seen once per epoch,
# and --resume continues the run.
"$launch" -n 2 "$program" "${tiny[@]}" --epochs 2 --run-dir some --kv-store dist_async --audit --ps-staleness 1 >out 2>&1 ||
  complain "two workers: $(tail -n 5 out)"
grep -q "strategy ps_async, 2 ranks" out || complain "two workers: another strategy: $(cat out)"
grep -q "asynchronous parameter server over windows, 2 servers" out || complain "two workers: other servers: $(cat out)"
grep -q "done: 16 steps" out || complain "two workers: other steps: $(tail -n 2 out)"
[[ -d some/checkpoints/step-000000016 ]] || complain "two workers: not saved: $(ls some/checkpoints)"
for epoch in 0 1; do
  seen=$(cat some/audit-rank*.txt | awk -v e=$epoch '$1 == e { for (i = 4; i <= NF; ++i) print $i }' | sort -n | uniq -c |
    awk '$1 == 1' | wc -l)
  [[ $seen == 101 ]] || complain "epoch $epoch: $seen samples seen once: $(head -n 3 some/audit-rank0.txt)"
done
"$launch" -n 2 -s 1 "$program" "${tiny[@]}" --epochs 3 --run-dir some --strategy ps_async --resume >out 2>&1 ||
  complain "resuming: $(tail -n 5 out)"
grep -q "this run continues from .*step-000000016" out || complain "it began anew: $(cat out)"
grep -q "done: 24 steps" out || complain "resumed: other steps: $(tail -n 2 out)"
"$launch" -n 2 -s 1 "$program" "${tiny[@]}" --epochs 100 --max-steps 9 --run-dir few --strategy ps_async >out 2>&1 ||
  complain "--max-steps: $(tail -n 5 out)"
grep -qE "done: (9|10|11) steps" out || complain "--max-steps 9: $(tail -n 2 out)"

# refused WHAT TEXT OPTIONS...: checks that the job ends with status 2, prints the text and makes no new folder.
refused() {
  local what=$1 text=$2
  shift 2
  "$launch" -n 2 -s 1 "$program" "${tiny[@]}" --epochs 1 --run-dir refused "$@" >out 2>&1
  [[ $? == 2 ]] || complain "$what: not status 2: $(tail -n 5 out)"
  grep -qF -- "$text" out || complain "$what: it does not say '$text': $(cat out)"
  [[ ! -e refused ]] || { complain "$what: there is a run folder" && rm -rf refused; }
}
refused "a limit to the norm" "[--clip-norm] expected a synchronous strategy" --strategy ps_async --clip-norm 1
refused "whole tensors" "[--optimizer] expected a synchronous strategy" --strategy ps_async --optimizer lars
refused "tensors of lamb" "[--optimizer] expected a synchronous strategy" --strategy ps_async --optimizer lamb
refused "staleness elsewhere" "[--ps-staleness] expected strategy ps_async" --strategy ps --ps-staleness 1
refused "no number" "[--ps-staleness]" --strategy ps_async --ps-staleness=-1

# A process with other options than the job is refused alone, and its error names the first difference.
cat >otherwise <<'END'
#!/bin/sh
role=$1 rank=$2 option=$3 value=$4
shift 4
[ "$TUTTI_ROLE $TUTTI_RANK" = "$role $rank" ] && set -- "$@" "$option" "$value"
exec "$@"
END
chmod +x otherwise
# otherwise ROLE RANK OPTION VALUE TEXT: gives one process another value of OPTION, and expects TEXT in its error.
otherwise() {
  "$launch" -n 3 -s 1 ./otherwise "$1" "$2" "$3" "$4" "$program" "${tiny[@]}" --epochs 1 --run-dir refused --strategy ps_async >out 2>&1
  local status=$?
  [[ $status == 2 ]] || complain "$1 $2 with $3 $4: status $status: $(tail -n 5 out)"
  grep -qF "train_cifar10: [$1 $2 on localhost] expected $5. hint: start all processes with the same" out ||
    complain "$1 $2 with $3 $4: it does not say '$5': $(cat out)"
  [[ $(grep -c "train_cifar10: \[" out) == 1 ]] || complain "$1 $2 with $3 $4: others are refused too: $(cat out)"
  [[ ! -e refused ]] || { complain "$1 $2 with $3 $4: there is a run folder" && rm -rf refused; }
}
otherwise worker 2 --lr 0.5 "--lr left out, as the others have, got 0.5"
otherwise worker 0 --depth 14 "--depth 8, as the others have, got 14"
otherwise worker 1 --seed 9 "--seed \"3\", as the others have, got \"9\""
otherwise server 0 --depth 14 "--depth 8, as the workers have, got 14"
process() {
  local p
  for p in $(pgrep -f "^$program.*$work"); do
    tr '\0' '\n' <"/proc/$p/environ" | grep -x "TUTTI_ROLE=$1" >/dev/null &&
      tr '\0' '\n' <"/proc/$p/environ" | grep -x "TUTTI_RANK=$2" >/dev/null && echo "$p"
  done
}
begun() {
  for _ in $(seq 300); do grep -qs '"epoch":2' "$1/log.jsonl" && return || sleep 0.1; done
  complain "$1 did not begin: $(tail -n 5 out)"
}
# If a process is killed, the error names it, and the launcher ends the other processes.
for victim in "worker 1" "server 0"; do
  # shellcheck disable=SC2086
  set -- $victim
  "$launch" -n 2 -s 1 "$program" "${tiny[@]}" --epochs 10000 --run-dir "$work/killed_$1" --strategy ps_async >out 2>&1 &
  job=$!
  begun "killed_$1"
  kill -9 "$(process "$1" "$2")"
  wait $job
  status=$?
  [[ $status == 5 ]] || complain "$victim killed: status $status: $(tail -n 5 out)"
  grep -q "tutti-launch: \[$victim on localhost\] expected exit code 0, got its end by SIGKILL" out ||
    complain "$victim killed, and not named: $(tail -n 5 out)"
done
# After a request to stop, rank 0 saves the weights of the servers.
"$launch" -n 2 -s 2 "$program" "${tiny[@]}" --epochs 10000 --run-dir "$work/stopped" --strategy ps_async >out 2>&1 &
job=$!
begun stopped
kill -INT $job
wait $job
status=$?
[[ $status == 130 ]] || complain "stopped: status $status: $(tail -n 5 out)"
grep -q "state saved" out || complain "stopped, and not saved: $(tail -n 5 out)"
[[ -z $(pgrep -f "^$program.*$work") ]] || complain "a process is left over"
((failures == 0)) && echo "all good"
exit $((failures > 0))
