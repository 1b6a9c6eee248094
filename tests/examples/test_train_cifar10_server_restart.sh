#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# waits
# Tests a server of asynchronous training that is killed: it starts again and continues from its stored state.
set -uo pipefail
# shellcheck source=launched.sh
. "$(dirname "${BASH_SOURCE[0]}")/launched.sh"
launched ps libzmq3-dev
tiny=(--dataset synthetic --num-examples 256 --image-shape "3,16,16" --depth 8 --batch-size 16 --threads 1 --seed 3
  --disp-batches 1000 --strategy ps_async)
# process ROLE RANK: prints the process id of that process.
process() {
  local p
  for p in $(pgrep -f "^$program.*$work"); do
    tr '\0' '\n' <"/proc/$p/environ" | grep -x "TUTTI_ROLE=$1" >/dev/null &&
      tr '\0' '\n' <"/proc/$p/environ" | grep -x "TUTTI_RANK=$2" >/dev/null && echo "$p"
  done
}
# begun FOLDER EPOCH: waits until the run has begun that epoch.
begun() {
  for _ in $(seq 600); do grep -qs "\"epoch\":$2," "$1/log.jsonl" && return || sleep 0.05; done
  complain "$1 did not come to epoch $2: $(tail -n 5 out)"
}
# newest SERVER: prints the newer one of the two stored states of a server.
newest() {
  for _ in $(seq 600); do
    [[ $(find "run/servers/server-$1/checkpoints" -maxdepth 1 -name 'step-*' 2>/dev/null | wc -l) -ge 2 ]] && break || sleep 0.05
  done
  find "$work/run/servers/server-$1/checkpoints" -maxdepth 1 -name 'step-*' | sort | tail -n 1
}

"$launch" -n 2 -s 2 --server-restarts 2 "$program" "${tiny[@]}" --epochs 100 --run-dir "$work/run" --ps-snapshot-seconds 0.2 \
  >out 2>&1 &
job=$!
begun run 4
kill -9 "$(process server 0)"
begun run 20
# The newest state of the second server is damaged, so the server uses the previous state.
victim=$(process server 1)
kill -STOP "$victim"
damaged=$(newest 1)
truncate -s -1 "$damaged/model.safetensors"
kill -9 "$victim"
wait $job
status=$?
[[ $status == 0 ]] || complain "status $status: $(tail -n 8 out)"
for server in 0 1; do
  grep -q "server $server on localhost: its end by SIGKILL; it is started again" out || complain "server $server: not said"
  grep -q "server $server goes on from step [0-9]* of all workers" out || complain "server $server: began anew"
  grep -qE "server $server has lost [0-9]+ steps? of rank [01] on localhost" out || complain "server $server: what was lost is not said"
done
grep -qF "$damaged is not used: " out || complain "the damaged state is not named: $(grep s1 out)"
grep -qF "over ZeroMQ, 2 servers (no windows: servers can restart)" out || complain "windows: not said: $(grep note out)"
grep -q "done: 1600 steps" out || complain "other steps: $(tail -n 2 out)"
first=$(grep -oE "epoch 1/100  train loss [0-9.]+" out | grep -oE "[0-9.]+$")
last=$(grep -oE "epoch 100/100  train loss [0-9.]+" out | grep -oE "[0-9.]+$")
awk -v a="$first" -v b="$last" 'BEGIN { exit !(b < a / 2) }' || complain "the loss does not fall: $first, $last"
[[ ! -e run/servers ]] || complain "states are left over: $(find run/servers)"
[[ -d run/checkpoints/step-000001600 ]] || complain "not saved: $(ls run/checkpoints)"

# One more restart than allowed: the job ends, and the error names the server.
"$launch" -n 2 -s 1 --server-restarts 1 "$program" "${tiny[@]}" --epochs 10000 --run-dir "$work/twice" >out 2>&1 &
job=$!
begun twice 4
kill -9 "$(process server 0)"
for _ in $(seq 600); do grep -q "server 0 goes on from step" out && break || sleep 0.05; done
kill -9 "$(process server 0)"
wait $job
status=$?
[[ $status == 5 ]] || complain "killed twice: status $status: $(tail -n 8 out)"
grep -q "tutti-launch: \[server 0 on localhost\] expected exit code 0, got its end by SIGKILL" out ||
  complain "killed twice, and not named: $(tail -n 5 out)"

# refused WHAT TEXT COMMAND...: checks that the command ends with status 2 and prints the text.
refused() {
  local what=$1 text=$2
  shift 2
  "$@" >out 2>&1
  [[ $? == 2 ]] || complain "$what: not status 2: $(tail -n 5 out)"
  grep -qF -- "$text" out || complain "$what: it does not say '$text': $(cat out)"
}
refused "nothing kept" "because its servers save no state" "$launch" -n 1 -s 1 --server-restarts 1 "$program" "${tiny[@]}" --epochs 1 \
  --run-dir no --ps-snapshot-seconds 0
refused "synchronous servers" "because its servers save no state" "$launch" -n 1 -s 1 --server-restarts 1 "$program" "${tiny[@]}" --epochs 1 \
  --run-dir no --strategy ps
refused "no folder" "[--run-dir] expected a folder" "$launch" -n 1 -s 1 --server-restarts 1 "$program" "${tiny[@]}" --epochs 1
refused "synchronous" "[--ps-snapshot-seconds] expected strategy ps_async" "$program" --ps-snapshot-seconds 5
"$launch" -n 1 -s 1 "$program" "${tiny[@]}" --epochs 1 --run-dir idle --ps-snapshot-seconds 5 >out 2>&1 || complain "$(cat out)"
grep -q "note: no effect: --ps-snapshot-seconds" out || complain "not said: $(cat out)"
[[ -z $(pgrep -f "^$program.*$work") ]] || complain "a process is left over"
((failures == 0)) && echo "all good"
exit $((failures > 0))
