#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs on each node of a multi-node Batch job. A child node reports to the main node and waits. The main node waits for all
# children, starts the program with mpirun and exits with its code. Started by entry-point.sh.
#   mpi-run.sh [PROGRAM ARGUMENT...]      default: train_imagenet for 90 epochs, poly, 10 of them warmup
# Variables of the job's definition:
#   MPI_GPUS         processes                                             all slots: GPUs, else processors
#   BATCH_SIZE       images per process                                    the program's
#   JOB_DIR          the data set, an existing folder                      the program's
#   SCRATCH_DIR      working folder, and destination of S3_INPUT                           /tmp
#   RUNS_DIR         shared by the nodes; the job's checkpoints, logs and TensorBoard files go to RUNS_DIR/<job id>
#                                                                          $SCRATCH_DIR/runs
#   S3_INPUT         s3://BUCKET/KEY, fetched by each node: an archive (.tar, .tar.gz, .tgz) is unpacked; with "/" at its
#                    end all objects below it
#   S3_OUTPUT        s3://BUCKET/PREFIX, gets batch_output_<job id>.tar.gz of the job's folder
#   TUTTI_<OPTION>   any option of the program: TUTTI_NUM_EPOCHS=30; on all nodes, as NCCL_*, FI_*, HOROVOD_* and OMP_*
#   EXTRA_MPI_PARAMS more arguments of mpirun
#   INTERFACE        network interface of the nodes                                 eth0
#   JOIN_TIMEOUT     seconds within which all nodes must report            900
#   MAIN_TIMEOUT     seconds without the main node after which a child ends   120
#   STOP_TIMEOUT     seconds for the program to save its state when Batch stops the job   20
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
state=${BATCH_STATE_DIR:-/tmp}
hosts=$state/hostfile
ssh=(ssh -F "${BATCH_SSH_DIR:-/run/batch-ssh}/ssh_config")
say() { printf 'mpi-run: %s\n' "$*" >&2; }

# finish CODE: writes the code for entry-point.sh, in one rename.
finish() {
  echo "$1" >"$state/batch-exit-code.tmp"
  mv "$state/batch-exit-code.tmp" "$state/batch-exit-code"
  exit "$1"
}
usage() {
  say "$*"
  say "usage: in a container of a multi-node parallel job, where Batch sets AWS_BATCH_JOB_NODE_INDEX," \
    "AWS_BATCH_JOB_NUM_NODES, AWS_BATCH_JOB_MAIN_NODE_INDEX and on children AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
  finish 2
}
# number NAME DEFAULT LARGEST: sets the variable to a number from 1, or from 0 if its name ends in INDEX.
number() {
  local least=1
  [[ $1 != *INDEX ]] || least=0
  [[ -n ${!1:-} ]] || printf -v "$1" %s "$2"
  if ! [[ ${!1} =~ ^[0-9]{1,9}$ ]] || ((10#${!1} < least || 10#${!1} > $3)); then
    usage "[$1] expected a number from $least to $3, got \"${!1}\"."
  fi
  printf -v "$1" %d "$((10#${!1}))"
}
number AWS_BATCH_JOB_NODE_INDEX "" 9999
number AWS_BATCH_JOB_NUM_NODES "" 1000
number AWS_BATCH_JOB_MAIN_NODE_INDEX "" 9999
number JOIN_TIMEOUT 900 86400
number MAIN_TIMEOUT 120 86400
number STOP_TIMEOUT 20 86400
[[ -z ${MPI_GPUS:-} ]] || number MPI_GPUS "" 100000
interface=${INTERFACE:-eth0}
scratch=${SCRATCH_DIR:-/tmp}
# Batch calls the nodes of job J J#0, J#1 and so on.
job=${AWS_BATCH_JOB_ID:-job}
job=${job%%#*}
[[ $job =~ ^[A-Za-z0-9][A-Za-z0-9_.:-]*$ ]] || usage "[AWS_BATCH_JOB_ID] expected the id of a job, got \"$job\"."
run_folder=${TUTTI_LOG_DIR:-${RUNS_DIR:-$scratch/runs}/$job}

is_address() {
  local part octets
  [[ $1 =~ ^[0-9]{1,3}(\.[0-9]{1,3}){3}$ ]] || return
  IFS=. read -ra octets <<<"$1"
  for part in "${octets[@]}"; do ((10#$part <= 255)) || return; done
}
own_address() {
  local line
  line=$(ip -4 -o addr show dev "$interface" scope global 2>/dev/null | head -n 1) || true
  [[ $line =~ inet\ ([0-9.]+)/ ]] && echo "${BASH_REMATCH[1]}"
}
own_slots() {
  local devices=()
  if command -v nvidia-smi >/dev/null; then
    shopt -s nullglob
    devices=(/dev/nvidia[0-9]*)
    shopt -u nullglob
  fi
  if ((${#devices[@]})); then echo "${#devices[@]}"; else nproc; fi
}
address=$(own_address) || usage "[INTERFACE] expected an IPv4 address on $interface, got no address."
slots=$(own_slots)

stopping=
told_ranks=
mpirun_pid=
files_pid=
# Batch stops a job with SIGTERM to every container and SIGKILL 30 s later. If one process of the training gets the signal, all
# of them stop after their step and save the state. mpirun must not get the signal: it would kill them.
# shellcheck disable=SC2317  # called by the trap
on_term() {
  [[ -z $stopping ]] || return 0
  stopping=$SECONDS
  say "Batch stops the job"
  [[ -z $files_pid ]] || kill -TERM "$files_pid" 2>/dev/null || true
  tell_ranks
}
# Only once: a second signal would end the processes before they save the state.
tell_ranks() {
  local child
  [[ -n $mpirun_pid && -z $told_ranks ]] || return 0
  for child in $(pgrep -P "$mpirun_pid"); do
    if [[ $(cat "/proc/$child/comm" 2>/dev/null) != ssh ]] && kill -TERM "$child" 2>/dev/null; then told_ranks=1; fi
  done
}
trap on_term TERM INT
# pause SECONDS: sleeps; a signal ends it early.
pause() {
  local child
  sleep "$1" &
  child=$!
  wait "$child" || kill "$child" 2>/dev/null || true
}
stop_where_asked() { [[ -z $stopping ]] || finish 143; }

# files ARGUMENT...: runs job_files.py; a signal ends it.
files() {
  local code=0
  "${PYTHON:-python3}" "$here/job_files.py" "$@" &
  files_pid=$!
  wait "$files_pid" || code=$?
  while kill -0 "$files_pid" 2>/dev/null; do wait "$files_pid" || code=$?; done
  files_pid=
  return "$code"
}

# report LINE: sends LINE to the main node, and repeats it until the main node has it.
report() {
  local pause=1 end=$((SECONDS + JOIN_TIMEOUT))
  # shellcheck disable=SC2016  # the main node's folder, from the environment of its sshd
  until "${ssh[@]}" "$AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS" 'cat >>"$BATCH_STATE_DIR/hostfile"' <<<"$1"; do
    stop_where_asked
    if ((SECONDS >= end)); then
      say "[main node] expected $AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS to answer within $JOIN_TIMEOUT s, got no answer."
      finish 5
    fi
    say "the main node does not answer yet, will try again in $pause s"
    pause "$pause"
    stop_where_asked
    pause=$((pause < 16 ? pause * 2 : 16))
  done
}

# fetch: sets code to 3 if the data set does not exist because the node could not mount its file system, or gets S3_INPUT.
fetch() {
  if [[ -n ${JOB_DIR:-} && ! -d $JOB_DIR ]]; then
    say "[JOB_DIR] expected the folder $JOB_DIR, got no folder." \
      "hint: this node could not mount the file system; the system log of its instance shows the reason."
    code=3
  elif [[ -n ${S3_INPUT:-} ]]; then
    files fetch "$S3_INPUT" "$scratch" || code=$?
  fi
}

child() {
  local code=0 seen=$SECONDS main=${AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS:-} sshd
  is_address "$main" ||
    usage "[AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS] expected the main node's IPv4 address, got \"$main\"."
  fetch
  stop_where_asked
  ((code == 0)) || { report "$address failed=$code" && finish "$code"; }
  report "$address slots=$slots"
  say "reported $address slots=$slots to the main node"
  # Batch stops the children when the main node has ended. If it does not, they end by themselves.
  while [[ -z $stopping ]]; do
    if timeout 5 bash -c ": </dev/tcp/$main/$SSH_PORT" 2>/dev/null; then
      seen=$SECONDS
    elif ((SECONDS - seen >= MAIN_TIMEOUT)); then
      say "[main node] expected $main to answer, got no answer for $MAIN_TIMEOUT s."
      finish 5
    fi
    pause "$((MAIN_TIMEOUT < 50 ? 1 : 10))"
  done
  # Waits until the training's processes have ended; the main node stops them.
  sshd=$(cat "${BATCH_SSH_DIR:-/run/batch-ssh}/sshd.pid" 2>/dev/null) || finish 143
  while ((SECONDS - stopping < STOP_TIMEOUT + 5)) && pgrep -P "$sshd" >/dev/null; do pause 1; done
  finish 143
}

# read_nodes: fills nodes with one "ADDRESS slots=N" for each node: the main node, then the others in the order in which
# they reported.
read_nodes() {
  local line node rest
  declare -A seen=([$address]=1)
  nodes=("$address slots=$slots")
  while IFS= read -r line || [[ -n $line ]]; do
    node=${line%% *} rest=${line#* }
    if ! is_address "$node" || ! [[ $rest =~ ^(slots|failed)=[0-9]{1,4}$ ]] || ((10#${rest#*=} < 1)); then
      [[ -n ${complained[$line]:-} ]] || say "[hostfile] expected \"ADDRESS slots=N\", got \"${line:0:80}\": left out."
      complained[$line]=1
    elif [[ $rest == failed=* ]]; then
      say "[node $node] expected its data, got exit code ${rest#*=}; see its own log."
      finish "$((10#${rest#*=} & 255))"
    elif [[ -z ${seen[$node]:-} ]]; then
      seen[$node]=1
      nodes+=("$line")
    fi
  done <"$hosts"
}

# default VALUE NAME...: gives the program's option a value if the variables of all its names are unset.
default() {
  local value=$1 name
  shift
  for name; do [[ -z ${!name:-} ]] || return 0; done
  export "$1=$value"
}

set_options() {
  local program=${1##*/}
  [[ $program == train_imagenet || $program == train_cifar10 ]] || return 0
  default "$run_folder" TUTTI_LOG_DIR TUTTI_RUN_DIR TUTTI_TRAIN_DIR
  [[ -z ${BATCH_SIZE:-} ]] || default "$BATCH_SIZE" TUTTI_BATCH_SIZE
  [[ -z ${JOB_DIR:-} ]] || default "$JOB_DIR" TUTTI_DATA_DIR TUTTI_DATA
  # A job that Batch restarts keeps its number and continues; train_imagenet does so by itself.
  if [[ $program == train_cifar10 && -d $run_folder/checkpoints ]]; then default latest TUTTI_RESUME; fi
  if [[ $program == train_imagenet ]] && (($# == 1)); then
    [[ -n ${TUTTI_NUM_BATCHES:-} ]] || default 90 TUTTI_NUM_EPOCHS TUTTI_EPOCHS
    default poly TUTTI_LR_DECAY_MODE TUTTI_LR_SCHEDULE
    default 10 TUTTI_WARMUP_EPOCHS
  fi
}

main() {
  local code=0 end shown=0 told=$SECONDS total=0 node more name command program=("$@")
  declare -A complained=()
  ((${#program[@]})) || program=(train_imagenet)
  command -v "${program[0]}" >/dev/null || usage "[program] expected ${program[0]}, got no file of that name."
  command -v mpirun >/dev/null || usage "[start] expected mpirun, got no file of that name."
  touch "$hosts"
  fetch
  stop_where_asked
  ((code == 0)) || finish "$code"
  end=$((SECONDS + JOIN_TIMEOUT))
  while :; do
    read_nodes
    if ((${#nodes[@]} != shown || SECONDS - told >= 30)); then
      shown=${#nodes[@]} told=$SECONDS
      say "$shown out of $AWS_BATCH_JOB_NUM_NODES nodes joined, will check again in 1 second"
    fi
    ((shown < AWS_BATCH_JOB_NUM_NODES)) || break
    if ((SECONDS >= end)); then
      say "[nodes] expected $AWS_BATCH_JOB_NUM_NODES nodes within $JOIN_TIMEOUT s, got $shown: ${nodes[*]%% *}." \
        "hint: see the log streams of the other nodes; JOIN_TIMEOUT sets the time."
      finish 5
    fi
    pause 1
    stop_where_asked
  done
  say "All nodes successfully joined"
  printf '%s\n' "${nodes[@]}" | tee "$hosts-deduped"
  for node in "${nodes[@]}"; do total=$((total + 10#${node#*=})); done
  ((${MPI_GPUS:-$total} <= total)) || usage "[MPI_GPUS] expected at most $total, the slots of all nodes, got $MPI_GPUS."

  set_options "${program[@]}"
  export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-$interface}
  # The main node opens every connection itself. A node is filled before the next one.
  command=(mpirun -np "${MPI_GPUS:-$total}" --machinefile "$hosts-deduped" -mca plm_rsh_no_tree_spawn 1
    -mca plm_rsh_agent "${ssh[*]}" -bind-to socket -map-by slot -mca pml ob1 -mca btl "^openib"
    -mca btl_tcp_if_include "$interface" -mca oob_tcp_if_include "$interface" -x PATH -x LD_LIBRARY_PATH)
  ((EUID != 0)) || command+=(--allow-run-as-root)
  for name in $(compgen -e); do
    case $name in
      TUTTI_* | NCCL_* | FI_* | HOROVOD_* | OMP_* | JOB_DIR | SCRATCH_DIR | RUNS_DIR | BATCH_SIZE | AWS_BATCH_JOB_ID)
        command+=(-x "$name")
        ;;
    esac
  done
  read -ra more <<<"${EXTRA_MPI_PARAMS:-}" || true
  command+=("${more[@]}" "${program[@]}")
  export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
  say "starts ${command[*]}"
  cd "$scratch"
  stop_where_asked
  "${command[@]}" &
  mpirun_pid=$!
  while kill -0 "$mpirun_pid" 2>/dev/null; do
    code=0
    if [[ -z $stopping ]]; then
      wait "$mpirun_pid" || code=$?
    elif ((SECONDS - stopping >= STOP_TIMEOUT)); then
      say "[stop] expected the program to end within $STOP_TIMEOUT s, but it did not: its state is that of its last checkpoint."
      kill -TERM "$mpirun_pid" 2>/dev/null || true
      pause 3
      kill -KILL "$mpirun_pid" 2>/dev/null || true
      break
    else
      # A signal may arrive before the processes exist.
      tell_ranks
      pause 0.2
    fi
  done
  if [[ -n $stopping ]]; then
    # mpirun would report the code of a rank that another rank has stopped.
    code=0
    wait "$mpirun_pid" 2>/dev/null || code=143
  fi
  mpirun_pid=
  say "the training ended with code $code"
  if [[ -n ${S3_OUTPUT:-} ]]; then upload "$code"; fi
  finish "$code"
}

# upload CODE: uploads the existing files, also after a failed training. A failure of the upload counts only if CODE is 0.
upload() {
  local failed=0 only=()
  if [[ ! -d $run_folder ]]; then
    say "no upload: the folder $run_folder does not exist"
    (($1)) || finish 3
    return 0
  fi
  # Only seconds are left before Batch kills the container: uploads only the newest checkpoint and the logs.
  [[ -z $stopping ]] || only=(--newest-checkpoint)
  files upload "${only[@]}" "$run_folder" "$S3_OUTPUT" "batch_output_$job" "$scratch" || failed=$?
  (($1 || failed == 0)) || finish "$failed"
}

if ((AWS_BATCH_JOB_NODE_INDEX == AWS_BATCH_JOB_MAIN_NODE_INDEX)); then
  say "node $AWS_BATCH_JOB_NODE_INDEX of $AWS_BATCH_JOB_NUM_NODES, the main node: $address slots=$slots"
  main "$@"
else
  say "node $AWS_BATCH_JOB_NODE_INDEX of $AWS_BATCH_JOB_NUM_NODES, a child: $address slots=$slots"
  child
fi
