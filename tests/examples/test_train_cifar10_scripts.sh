#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# waits
# Tests train_cifar10 with parameter servers, without tutti-launch: a script starts each process. The processes get a
# list of all addresses, as in TensorFlow's scripts, or numbers from a scheduler, as in MXNet's scripts.
set -uo pipefail
program=${TUTTI_BUILD_DIR:?}/examples/train_cifar10
[[ -x $program ]] || { echo "SKIP: no $program; CLI11 is missing" && exit 77; }
"$program" --strategy ps 2>&1 | grep "install libzmq3-dev" >/dev/null && { echo "SKIP: a build without ZeroMQ (Debian: libzmq3-dev)" && exit 77; }
unset TUTTI_DATA
work=$(mktemp -d)
pids=()
cleanup() {
  for p in "${pids[@]}"; do kill -9 "$p" 2>/dev/null; done
  rm -rf "$work"
}
trap cleanup EXIT
cd "$work" || exit 1
tiny=(--dataset synthetic --num-examples 101 --image-shape "3,16,16" --depth 8 --batch-size 16 --threads 1 --seed 3)
(umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >job.key && tr a-f A-F <job.key >same.key &&
  head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >other.key)
failures=0
complain() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
# ports N: prints the numbers of N free ports.
ports() { python3 -c "import socket
s=[socket.create_server(('127.0.0.1',0)) for _ in range($1)]
print(*(x.getsockname()[1] for x in s))"; }
# lists: sets the address lists of 2 servers and 2 workers, with new ports.
lists() {
  # shellcheck disable=SC2046
  set -- $(ports 4)
  first=$1 second=$2
  list=(--ps_hosts "localhost:$1,localhost:$2" --worker_hosts "localhost:$3,localhost:$4")
}
# start RUN OPTIONS...: starts the processes in `all`. Their output is in RUN.ps0, RUN.ps1 and so on.
all=(ps0 ps1 worker0 worker1)
start() {
  local run=$1 each
  shift
  pids=()
  for each in "${all[@]}"; do
    "$program" "${tiny[@]}" "${list[@]}" --job_name "${each%?}" --task_index "${each: -1}" --train_dir "$work/$run" \
      --ps-key-file job.key "$@" >"$run.$each" 2>&1 &
    pids+=($!)
  done
}
# ended WHAT CODES RUN: waits for all processes, and compares their exit codes. A killed process has 137.
ended() {
  local codes="" p
  for p in "${pids[@]}"; do
    wait "$p"
    codes="$codes$? "
  done
  [[ $codes == "$2 " ]] || complain "$1: exit codes $codes, not $2: $(tail -n 4 "$3".*)"
}
# until_said FILE TEXT: waits until the file contains the text.
until_said() {
  for _ in $(seq 1800); do grep -qsF -- "$2" "$1" && return || sleep 0.1; done
  complain "$1 does not say '$2': $(tail -n 5 "$1")"
}
said() { grep -qF -- "$2" "$1" || complain "$1 does not say '$2': $(tail -n 5 "$1")"; }

# ---- with a list of all addresses ----
lists
start whole --max_steps 60
ended "a whole job" "0 0 0 0" whole
said whole.worker0 "strategy ps_async, 2 ranks"
said whole.worker0 "done: 6"
for w in 0 1; do
  lines=$(grep -cE '^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}: step [0-9]+0, loss = [0-9]+\.[0-9]{2} \([0-9]+\.[0-9] examples/sec; [0-9]+\.[0-9]{3} sec/batch\)$' whole.worker$w)
  ((lines >= 1 && lines <= 6)) || complain "worker $w: $lines lines of progress: $(cat whole.worker$w)"
done
last=$(ls whole/checkpoints)
[[ $last =~ ^step-00000006[0-9]$ ]] || complain "it saved $last"
# The same command continues the run. The key may have other letter case. A run without a checkpoint starts again.
start whole --max_steps 90 --ps-key-file same.key
ended "going on" "0 0 0 0" whole
said whole.worker0 "this run continues from $work/whole/checkpoints/$last"
said whole.worker0 "done: 9"
mkdir early && : >early/log.jsonl
start early --max_steps 20 --epochs 100 --strategy ps
ended "synchronous, begun before" "0 0 0 0" early
said early.worker0 "strategy ps, 2 ranks"
said early.worker0 "starting from the beginning"

# The job saves by the clock. A worker is killed, a message names it, and it returns. Later a server is killed.
lists
start lost --max_steps 100000000 --save-seconds 1 --audit
until_said lost.worker1 "step 10,"
for _ in $(seq 100); do [[ -n $(ls lost/checkpoints 2>/dev/null) ]] && break || sleep 0.1; done
[[ -n $(ls lost/checkpoints 2>/dev/null) ]] || complain "no checkpoint after --save-seconds 1"
kill -9 "${pids[3]}"
begun=$(date +%s%N)
until_said lost.ps0 "rank 1 on localhost is gone"
(($(date +%s%N) - begun < 5000000000)) || complain "a killed worker was named late"
wait "${pids[3]}" 2>/dev/null
"$program" "${tiny[@]}" "${list[@]}" --job_name worker --task_index 1 --train_dir "$work/lost" --ps-key-file job.key \
  --max_steps 100000000 --save-seconds 1 --audit >lost.again 2>&1 &
pids[3]=$!
until_said lost.ps1 "rank 1 on localhost is back"
until_said lost.again "step 10,"
began=$(grep -h rollback lost/audit-rank1.txt | tail -n 1)
[[ $began =~ ^rollback\ [1-9] ]] || complain "one that was started again does not go on beside the others: '$began'"
kill -9 "${pids[1]}"
ended "a server killed" "5 137 5 5" lost
said lost.ps0 "server 1 on localhost is gone"
grep -qE "server 1 (on|at) .* is gone" lost.worker0 || complain "not named: $(tail -n 3 lost.worker0)"
# If a worker does not return, the servers report it as lost at the end.
lists
start missed --max_steps 400
until_said missed.worker1 "step 10,"
kill -9 "${pids[3]}"
ended "a worker killed" "5 5 0 137" missed
said missed.ps1 "rank 1 on localhost lost, and not returned"
# With synchronous workers the loss of a worker ends the job.
lists
start together --max_steps 100000000 --strategy ps
until_said together.worker1 "step 10,"
kill -9 "${pids[3]}"
ended "a synchronous worker killed" "5 5 5 137" together
for each in ps0 ps1 worker0; do said together.$each "rank 1 on localhost is gone"; done
# A stopped worker is removed from the job.
lists
start stopped --max_steps 100000000 --rank-timeout 1
until_said stopped.worker1 "step 10,"
kill -STOP "${pids[3]}"
until_said stopped.ps0 "[worker 1 on localhost] expected a process of the job until its end, got no message"
kill -9 "${pids[3]}" "${pids[0]}"
ended "the first server killed" "137 5 5 137" stopped
said stopped.ps1 "server 0 at localhost:$first, the arbiter of the job"
# All processes get a signal to stop.
lists
start asked --max_steps 100000000
until_said asked.worker1 "step 10,"
kill -TERM "${pids[@]}"
ended "stopped in order" "0 0 143 143" asked
said asked.worker0 "state saved"

# ---- evaluation during the training ----
line='^[0-9-]{10} [0-9:]{8}\.[0-9]{6}: precision @ 1 = (0\.[0-9]{3}|1\.000)$'
lists
"$program" --checkpoint_dir "$work/judged" --eval_dir "$work/eval" --eval_interval_secs 0.2 >evaluator 2>&1 &
evaluator=$!
until_said evaluator "no checkpoint in $work/judged yet"
start judged --max_steps 100000000 --save-seconds 1 --ema-decay 0.9
for _ in $(seq 300); do (($(grep -cE "$line" evaluator) >= 3)) && break || sleep 0.1; done
kill -TERM "${pids[@]}"
ended "a judged job" "0 0 143 143" judged
kill -INT $evaluator
wait $evaluator
[[ $? == 130 ]] || complain "the evaluation does not end in order: $(tail -n 3 evaluator)"
(($(grep -cE "$line" evaluator) >= 3)) || complain "not evaluated: $(cat evaluator)"
[[ $(grep -vcE "$line|no checkpoint|stopping after|^$" evaluator) == 0 ]] || complain "it says more: $(cat evaluator)"
ls eval/events.out.tfevents.* >/dev/null || complain "no curve for TensorBoard"
# Checkpoints appear and disappear while the evaluator reads them.
newest=$(find judged/checkpoints -name 'step-*' | sort | tail -n 1)
"$program" --checkpoint_dir judged --eval_dir eval --eval_interval_secs 0 >evaluator 2>&1 &
evaluator=$!
for i in $(seq 60); do
  mv "$newest" judged/checkpoints/step-000999$(printf %03d "$i") && sleep 0.03 && mv judged/checkpoints/step-000999* "$newest"
  [[ $i != 30 ]] || rm -f "$newest/optimizer.safetensors"
done
kill -0 $evaluator || complain "the evaluation did not live on: $(tail -n 3 evaluator)"
kill -INT $evaluator
wait $evaluator
"$program" --checkpoint_dir whole --eval_dir eval --run_once --eval_data train_eval --num_examples 50 >evaluator 2>&1 ||
  complain "once: $(cat evaluator)"
[[ $(grep -cE "$line" evaluator) == 1 && $(wc -l <evaluator) == 1 ]] || complain "once: it says otherwise: $(cat evaluator)"
# judged CODE WHAT TEXT OPTIONS...: checks the exit code and the output of an evaluation.
judged() {
  "$program" --eval_dir eval "${@:4}" >out 2>&1
  [[ $? == "$1" ]] || complain "$2: not status $1: $(cat out)"
  grep -qF -- "$3" out || complain "$2: it does not say '$3': $(cat out)"
}
judged 3 "nothing to evaluate" "[--checkpoint-dir] expected a checkpoint in none, got none" --checkpoint_dir none --run_once
judged 2 "other images" "[--eval-data] expected test or train_eval, got 'valid'" --eval_data valid
judged 2 "no time" "[--eval-interval-secs] expected 0" --eval_interval_secs=-1
judged 2 "no number" "[--eval-interval-secs]" --eval_interval_secs soon
judged 2 "fewer than no images" "[--num-examples] expected 0" --num_examples=-1
judged 2 "another net" "[--depth] expected 8, as in the checkpoint, got 14" --checkpoint_dir whole --run_once --depth 14
judged 2 "two commands" "[--job-name] expected options of an evaluation or of a job's process, not both" --job_name ps
judged 2 "another folder" "[--run-dir] expected --checkpoint-dir" --train_dir whole
[[ ! -e none ]] || complain "an evaluation makes a run folder"

# ---- errors ----
# refused CODE WHAT TEXT OPTIONS...: checks the exit code and the output of a single process.
refused() {
  local code=$1 what=$2 text=$3
  shift 3
  "$program" "${tiny[@]}" --train_dir "$work/refused" --comm-deadline 2 "$@" >out 2>&1
  [[ $? == "$code" ]] || complain "$what: not status $code: $(tail -n 5 out)"
  grep -qF -- "$text" out || complain "$what: it does not say '$text': $(cat out)"
  [[ $(wc -l <out) -le 3 ]] || complain "$what: it says too much: $(cat out)"
  [[ ! -e refused ]] || { complain "$what: there is a run folder" && rm -rf refused; }
}
lists
key=(--ps-key-file job.key)
good=("${list[@]}" "${key[@]}" --job_name worker)
refused 2 "no key" "[--ps-key-file] expected a file with the secret" "${list[@]}" --job_name worker
refused 2 "no list of servers" "[--ps-hosts] expected HOST:PORT of each" --worker_hosts a:1 --job_name worker "${key[@]}"
refused 2 "no list of workers" "[--worker-hosts] expected HOST:PORT of each" --ps_hosts a:1 --job_name worker "${key[@]}"
refused 2 "no job" "[--job-name] expected ps or worker, got ''" "${list[@]}" "${key[@]}"
refused 2 "another job" "[--job-name] expected ps or worker, got 'chief'" "${list[@]}" --job_name chief "${key[@]}"
for index in -1 2 99999999999999; do
  refused 2 "index $index" "[--task-index] expected 0 to 1" "${good[@]}" --task_index=$index
done
refused 2 "no index" "[--task-index]" "${good[@]}" --task_index one
for bad in "a" "a:" "a:0" "a:65536" "a:1,,b:1" ",a:1" "a:1," "u@a:1" "-a:1" "a b:1" 'a$(id):1' "[::1:1" "a:1:2" "a:01x" ""; do
  refused 2 "servers '$bad'" "[--ps-hosts] expected" --ps_hosts "$bad" --worker_hosts b:1 --job_name worker "${key[@]}"
  refused 2 "workers '$bad'" "[--worker-hosts] expected" --ps_hosts b:1 --worker_hosts "$bad" --job_name worker "${key[@]}"
done
refused 2 "a server twice" "expected each host and port once, got a:1 again" --ps_hosts a:1,b:1,a:1 --worker_hosts b:2 --job_name ps "${key[@]}"
refused 2 "in both lists" "[--worker-hosts] expected other ports" --ps_hosts a:1 --worker_hosts a:1 --job_name ps "${key[@]}"
refused 2 "all-reduce" "[--strategy] expected ps or ps_async" "${good[@]}" --strategy solo
refused 2 "no steps" "[--max-steps] expected 1 or more" "${good[@]}" --max_steps 0
refused 2 "no time-out" "[--rank-timeout] expected 0.1" "${good[@]}" --rank-timeout 0
TUTTI_RANK=0 TUTTI_SIZE=1 refused 2 "two starters" "expected a process that no launcher has numbered" "${good[@]}"
refused 2 "a key without such a job" "[--ps-key-file] expected a job with processes that scripts start" "${key[@]}"
refused 2 "a time-out without such a job" "[--rank-timeout] expected a job with processes" --rank-timeout 3
# key WHAT TEXT FILE: checks that a worker refuses the key file.
key() { refused 2 "key file: $1" "$2" "${list[@]}" --job_name worker --ps-key-file "$3"; }
for mode in 0640 0604 0660 0700 0620; do
  install -m $mode job.key bad.key
  key "mode $mode" "mode $mode" bad.key
done
ln -s job.key link.key
key "a link" "a link" link.key
key "none" "No such file" none.key
mkfifo -m 0600 pipe.key
key "a pipe" "not a regular file" pipe.key
mkdir -m 0700 folder.key
key "a folder" "a folder" folder.key
for text in "" "ab" "$(cat job.key)0" "$(head -c 63 job.key)x" "$(cat job.key job.key)" "$(cat job.key) "; do
  (umask 077 && rm -f bad.key && printf '%s' "$text" >bad.key)
  key "'$text'" "64 hexadecimal digits" bad.key
  [[ -z $text ]] || ! grep -F "${text:0:20}" out >/dev/null || [[ $text == ab ]] || complain "the key stands in: $(cat out)"
done

refused 5 "no server" "expected server 0 at localhost:$first within 2000 ms, got no answer" "${good[@]}"
refused 5 "no such host" "got no address for nowhere.invalid (" --ps_hosts nowhere.invalid:1 --worker_hosts localhost:2 "${key[@]}" \
  --job_name worker
# hold: starts the program $holder, which holds the port $held.
hold() {
  rm -f held
  python3 -c "import socket,time
s=socket.create_server(('127.0.0.1',0)); print(s.getsockname()[1],flush=True); time.sleep(60)" >held &
  holder=$!
  for _ in $(seq 300); do [[ -s held ]] && break || sleep 0.1; done
  held=$(cat held)
}
release() {
  kill $holder
  wait $holder 2>/dev/null
}
hold
refused 5 "a port in use" "to listen at 127.0.0.1:$held, got Address already in use" --ps_hosts "localhost:$held" \
  --worker_hosts localhost:1 "${key[@]}" --job_name ps
release
# Too few processes have started: each process prints which processes are missing, and their addresses.
lists
all=(ps0 worker0 worker1)
start few --comm-deadline 3
ended "too few servers" "5 5 5" few
all=(ps0 ps1 worker0 worker1)
said few.ps0 "expected server 1 at localhost:$second within 3000 ms"
# A worker waits for the same time, unless it learns earlier that server 0 has ended.
for each in worker0 worker1; do
  grep -qF "expected server 0 at localhost:$first, the arbiter of the job, got the end of the connection" "few.$each" ||
    said few.$each "expected server 1 at localhost:$second within 3000 ms"
done
# Another program holds the port of one of the servers.
lists
hold
list[1]=localhost:$first,localhost:$held
start inuse --comm-deadline 120
begun=$(date +%s)
ended "the second server's port in use" "5 5 5 5" inuse
(($(date +%s) - begun < 60)) || complain "a server that could not begin is waited for"
said inuse.ps1 "to listen at 127.0.0.1:$held, got Address already in use"
for each in ps0 worker0 worker1; do
  grep -qE "server 1 (on|at) localhost.* is gone" inuse.$each || complain "$each does not name it: $(tail -n 3 inuse.$each)"
done
# A worker with other options is refused. The other processes report it and do not wait for it.
lists
all=(ps0 ps1 worker0)
start odd --strategy ps --comm-deadline 120
"$program" "${tiny[@]}" "${list[@]}" --job_name worker --task_index 1 --train_dir "$work/odd" --ps-key-file job.key \
  --strategy ps --comm-deadline 120 --lr 0.7 >odd.worker1 2>&1 &
pids+=($!)
begun=$(date +%s)
ended "a worker of other options" "5 5 5 2" odd
(($(date +%s) - begun < 60)) || complain "one that was refused is waited for"
for each in ps0 ps1 worker0; do said odd.$each "worker 1 on localhost was refused"; done
all=(ps0 ps1 worker0 worker1)
release
# A process with another secret, another list or a number that is in use gets an error, and the job continues.
lists
start going --max_steps 100000000
until_said going.worker1 "step 10,"
refused 5 "another secret" "--ps-key-file" "${list[@]}" --job_name worker --ps-key-file other.key
refused 2 "another list" "[job] expected the terms of the arbiter, 2 workers and 2 servers" --ps_hosts "localhost:$first" \
  --worker_hosts a:1 --job_name worker "${key[@]}"
refused 2 "a number twice" "the number of worker 1 on localhost, which has joined already" "${list[@]}" --job_name worker --task_index 1 \
  "${key[@]}" --max_steps 100000000
kill -0 "${pids[@]}" || complain "strangers end a job"
kill -TERM "${pids[@]}"
ended "a job with strangers" "0 0 143 143" going

# ---- numbers from a scheduler ----
# with_scheduler RUN STRATEGY OPTIONS...: starts the processes as a scheduler does.
with_scheduler() {
  local run=$1 strategy=$2 each
  shift 2
  pids=()
  # shellcheck disable=SC2046
  set -- $(ports 1) "$@"
  port=$1
  shift
  for each in worker0 server0 scheduler worker1 server1; do
    DMLC_ROLE=${each%[01]} DMLC_PS_ROOT_URI=127.0.0.1 DMLC_PS_ROOT_PORT=$port DMLC_NUM_WORKER=2 DMLC_NUM_SERVER=2 \
      "$program" "${tiny[@]}" --kv-store "$strategy" --run-dir "$work/$run" "$@" >"$run.$each" 2>&1 &
    pids+=($!)
  done
}
for strategy in dist_sync dist_async; do
  with_scheduler $strategy $strategy --epochs 2 --ps-key-file job.key
  ended "$strategy" "0 0 0 0 0" $strategy
  grep -q "done: " $strategy.worker[01] || complain "$strategy: $(cat $strategy.worker*)"
  said $strategy.scheduler "scheduler at 127.0.0.1:$port, for 2 workers and 2 servers"
done
with_scheduler plain dist_sync --epochs 2 --ps-plain
ended "without a key" "0 0 0 0 0" plain
cmp -s {plain,dist_sync}/checkpoints/step-000000008/model.safetensors || complain "without a key: other weights"
with_scheduler killed dist_async --epochs 1000000 --ps-key-file job.key
for _ in $(seq 200); do grep -qs '"epoch":2' killed/log.jsonl && break || sleep 0.1; done
kill -9 "${pids[4]}"
ended "a server of a scheduler killed" "5 5 5 5 137" killed
grep -q "\[server [01] on 127.0.0.1\] expected a process of the job until its end" killed.scheduler || complain "not named: $(cat killed.scheduler)"
with_scheduler alone dist_async --epochs 1000000 --ps-key-file job.key
for _ in $(seq 200); do grep -qs '"epoch":2' alone/log.jsonl && break || sleep 0.1; done
kill -9 "${pids[2]}"
ended "a scheduler killed" "5 5 137 5 5" alone
said alone.server1 "the scheduler at 127.0.0.1:$port"
dmlc() {
  DMLC_ROLE=$1 DMLC_PS_ROOT_URI=$2 DMLC_PS_ROOT_PORT=$3 DMLC_NUM_WORKER=$4 DMLC_NUM_SERVER=$5 refused "${@:6}" --ps-plain
}
dmlc worker 127.0.0.1 1 1 1 5 "no scheduler" "expected the scheduler at 127.0.0.1:1 within 2000 ms"
dmlc scheduler 127.0.0.1 "$port" 2 1 5 "nobody" "[scheduler] expected 2 workers and 1 server within 2000 ms"
dmlc server "a b" 1 1 1 2 "an invalid address" "[environment DMLC_PS_ROOT_URI] expected"
dmlc server a 0 1 1 2 "no port" "[environment DMLC_PS_ROOT_PORT] expected an integer from 1"
dmlc server a "" 1 1 2 "an empty port" "[environment DMLC_PS_ROOT_PORT]"
dmlc server a 1 0 1 2 "no workers" "[environment DMLC_NUM_WORKER] expected"
dmlc scheduler a 1 1 0 2 "no servers" "[environment DMLC_NUM_SERVER] expected"
dmlc server tutti.invalid 1 1 1 5 "an unknown name" "a host name that can be resolved"
[[ -z $(pgrep -f "^$program.*$work") ]] || complain "a process is left over"
((failures == 0)) && echo "all good"
exit $((failures > 0))
