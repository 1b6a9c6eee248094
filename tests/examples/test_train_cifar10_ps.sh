#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# waits
# Tests train_cifar10 with parameter servers, started by tutti-launch.
set -uo pipefail
# shellcheck source=launched.sh
. "$(dirname "${BASH_SOURCE[0]}")/launched.sh"
launched ps libzmq3-dev

# The weights are the same as over MPI for any number of servers, because servers sum in the order of the ranks.
weights() { sha256sum <"$1/checkpoints/step-000000008/model.safetensors"; }
"$launch" -n 2 "$program" "${tiny[@]}" --epochs 2 --run-dir over_mpi --strategy mpi >out 2>&1 ||
  complain "over MPI: status $?: $(tail -n 5 out)"
for servers in 1 3; do
  MXNET_KVSTORE_BIGARRAY_BOUND=10000 "$launch" -n 2 -s $servers "$program" "${tiny[@]}" --epochs 2 \
    --run-dir "ps$servers" --kv-store dist_sync >out 2>&1 || complain "$servers servers: status $?: $(tail -n 5 out)"
  grep -q "strategy ps, 2 ranks" out || complain "$servers servers: another strategy: $(cat out)"
  grep -q "note: parameter server over windows, $servers server" out || complain "$servers servers: not said: $(cat out)"
  [[ $(weights "ps$servers") == "$(weights over_mpi)" ]] || complain "$servers servers: other weights than over MPI"
done
# If windows are disabled or cannot be made, the job uses sockets.
# sockets FOLDER NOTE COMMAND...: checks that the command prints the note and gives the same weights.
sockets() {
  local folder=$1 note=$2
  shift 2
  "$@" "${tiny[@]}" --epochs 2 --run-dir "$folder" --strategy ps >out 2>&1
  local status=$?
  [[ $status == 77 ]] && { echo "SKIP: $folder: this system takes no filter of system calls" && return; }
  [[ $status == 0 ]] || complain "$folder: status $status: $(tail -n 5 out)"
  grep -qF "note: parameter server over $note" out || complain "$folder: not said: $(cat out)"
  [[ $(weights "$folder") == "$(weights over_mpi)" ]] || complain "$folder: other weights than over MPI"
}
sockets unwanted "ZeroMQ, 2 servers" "$launch" -n 2 -s 2 "$program" --no-shared-memory
sockets no_memfd "ZeroMQ, 1 server (no windows: memfd_create: Operation not permitted)" \
  "$launch" -n 2 -s 1 python3 "${TUTTI_SOURCE_DIR:?}/tests/comm/without_call.py" refused memfd_create "$program"
# Windows must not use /dev/shm.
if unshare -m mount -t tmpfs none /mnt 2>/dev/null; then
  # shellcheck disable=SC2016  # the inner shell expands it
  sockets small_shm "windows, 1 server" unshare -m bash -c 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"' bash \
    "$launch" -n 2 -s 1 "$program"
else
  echo "SKIP: small_shm: this user makes no mount namespace"
fi
"$launch" -n 2 -s 2 "$program" "${tiny[@]}" --epochs 2 --run-dir bf16 --strategy ps --comm-wire bf16 >out 2>&1 ||
  complain "bf16 on the wire: $(tail -n 5 out)"
[[ $(weights bf16) != "$(weights over_mpi)" ]] || complain "--comm-wire bf16 does nothing"
for threshold in 0.5 0.1; do
  "$launch" -n 2 -s 2 "$program" "${tiny[@]}" --epochs 2 --run-dir "two_bits$threshold" --strategy ps --gc-type 2bit \
    --gc-threshold $threshold >out 2>&1 || complain "two bits: $(tail -n 5 out)"
done
[[ $(weights two_bits0.5) != "$(weights over_mpi)" ]] || complain "--gc-type 2bit does nothing"
[[ $(weights two_bits0.5) != "$(weights two_bits0.1)" ]] || complain "--gc-threshold does nothing"
"$launch" -n 1 -s 1 "$program" "${tiny[@]}" --epochs 1 --run-dir one >out 2>&1 || complain "one worker: $(tail -n 5 out)"
grep -q "strategy ps" out || complain "one worker with a server trains alone: $(cat out)"
# Servers of a job on one host accept connections only from this host.
# listening PID: prints the addresses at which a process listens, in the form of /proc/net/tcp.
listening() {
  local inode
  for inode in $(readlink "/proc/$1/fd/"* 2>/dev/null | sed -n 's/^socket:\[\([0-9]*\)\]$/\1/p'); do
    awk -v inode="$inode" '$4 == "0A" && $10 == inode { sub(":.*", "", $2); print $2 }' "/proc/$1/net/tcp" "/proc/$1/net/tcp6"
  done
}
"$launch" -n 1 -s 2 "$program" "${tiny[@]}" --epochs 1000000 --run-dir listens --strategy ps >out 2>&1 &
job=$!
until [[ -e listens/log.jsonl && $(wc -l <listens/log.jsonl) -ge 10 ]] || ! kill -0 $job 2>/dev/null; do sleep 0.1; done
found=0
for process in /proc/[0-9]*; do
  { tr '\0' '\n' <"$process/environ"; } 2>/dev/null | grep -qxF "TUTTI_STATE_DIR=$TUTTI_STATE_DIR" || continue
  for address in $(listening "${process#/proc/}"); do
    found=$((found + 1))
    # 127.0.0.1 in IPv4, or mapped to IPv6.
    [[ $address =~ ^(0000000000000000FFFF0000)?0100007F$ ]] || complain "$(tr '\0' ' ' <"$process/cmdline") listens at $address"
  done
done
((found >= 2)) || complain "two servers listen at $found addresses: $(tail -n 5 out)"
kill -INT $job 2>/dev/null
wait $job
[[ $? == 130 ]] || complain "it does not end in order: $(tail -n 5 out)"
# --resume continues the run with another number of servers.
"$launch" -n 2 -s 2 "$program" "${tiny[@]}" --epochs 1 --run-dir on --strategy ps >out 2>&1 &&
  "$launch" -n 2 -s 1 "$program" "${tiny[@]}" --epochs 2 --run-dir on --strategy ps --resume >out 2>&1 ||
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
refused "no servers" "[--num-servers] expected 1 or more" "$launch" -n 2 -s 0 "$program" --strategy ps
refused "nobody started it" "expected servers, got no server" "$program" --strategy ps
refused "mpirun" "got mpirun" mpirun --oversubscribe -np 2 "$program" --strategy ps
refused "servers for all-reduce" "expected none, because" "$launch" -n 2 -s 1 "$program" --strategy mpi
refused "a server of nothing" "[environment TUTTI_ROLE] expected worker" env TUTTI_ROLE=server "$program" --strategy solo
refused "another launcher" "another launcher" env DMLC_ROLE=server DMLC_NUM_WORKER=1 DMLC_NUM_SERVER=1 "$program" --strategy ps
refused "what all-reduce has" "[--no-hierarchical]" "$launch" -n 2 -s 1 "$program" --strategy ps --no-hierarchical
refused "two kinds of compression" "[--gc-type] expected none with --comm-wire bf16" "$launch" -n 2 -s 1 "$program" --strategy ps \
  --gc-type 2bit --comm-wire bf16
refused "compressed for nobody" "[--gc-type] expected a parameter-server strategy" "$program" --gc-type 2bit
refused "plain nothing" "[--ps-plain] expected strategy ps" "$program" --ps-plain
refused "an invalid bound" "MXNET_KVSTORE_BIGARRAY_BOUND" env MXNET_KVSTORE_BIGARRAY_BOUND=1e6 "$launch" -n 2 -s 1 "$program" \
  --strategy ps

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
  "$launch" -n 3 -s 1 ./otherwise "$1" "$2" "$3" "$4" "$program" "${tiny[@]}" --epochs 1 --run-dir refused --strategy ps >out 2>&1
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
# process ROLE RANK: prints the process id of that process.
process() {
  local p
  for p in $(pgrep -f "^$program.*$work"); do
    tr '\0' '\n' <"/proc/$p/environ" | grep -x "TUTTI_ROLE=$1" >/dev/null &&
      tr '\0' '\n' <"/proc/$p/environ" | grep -x "TUTTI_RANK=$2" >/dev/null && echo "$p"
  done
}
# begun FOLDER: waits for the second epoch of the run.
begun() {
  for _ in $(seq 300); do grep -qs '"epoch":2' "$1/log.jsonl" && return || sleep 0.1; done
  complain "$1 did not begin: $(tail -n 5 out)"
}
# A worker prints its error, and the other processes report it.
"$launch" -n 2 -s 1 "$program" "${tiny[@]}" --epochs 9 --lr 1e6 --warmup-epochs 0 --run-dir diverges --strategy ps >out 2>&1
[[ $? == 6 ]] || complain "a loss that is not finite: $(tail -n 5 out)"
grep -q "train_cifar10: \[.*not finite\|train_cifar10: \[.*finite" out || complain "it is not said: $(cat out)"

# If a process is killed, the error names it, and the other processes end with 5.
for victim in "worker 1" "server 0"; do
  # shellcheck disable=SC2086
  set -- $victim
  "$launch" -n 2 -s 1 "$program" "${tiny[@]}" --epochs 10000 --run-dir "$work/killed_$1" --strategy ps >out 2>&1 &
  job=$!
  begun "killed_$1"
  kill -9 "$(process "$1" "$2")"
  wait $job
  status=$?
  [[ $status == 5 ]] || complain "$victim killed: status $status: $(tail -n 5 out)"
  grep -q "tutti-launch: \[$victim on localhost\] expected exit code 0, got its end by SIGKILL" out ||
    complain "$victim killed, and not named: $(tail -n 5 out)"
done
# After a request to stop, the workers finish their step and save. The servers wait for the workers.
"$launch" -n 2 -s 2 "$program" "${tiny[@]}" --epochs 10000 --run-dir "$work/stopped" --strategy ps >out 2>&1 &
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
