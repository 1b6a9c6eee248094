# SPDX-License-Identifier: MIT
# Trains a ResNet-50 on N devices of the hosts file, over MPI. train.sh, train_synthetic.sh and train_more_aug.sh source it.
# Settings from the environment:
#   HOSTS           the hosts file                                        hosts, in the working folder
#   DATA_DIR        the ImageNet records                                  ~/data/tf-imagenet
#   LOG_DIR         the run's folder                                      ~/imagenet_resnet
#   TRAIN_IMAGENET  the program, at the same path on every host           train_imagenet on PATH, else the one installed
#                                                                         with these scripts
#   MPIRUN          the launcher                                          mpirun
#   BATCH_SIZE      images per device; by its memory if not given
#   EXTRA_MPI_PARAMS  more arguments of mpirun, e.g. "-x NCCL_DEBUG=INFO"; all hosts get NCCL_* and HOROVOD_* anyway
# For a data set other than ImageNet; the program counts its images itself:
#   EPOCHS          passes over it                                        90; train_synthetic.sh: 5
#   WARMUP_EPOCHS   of these with a rising learning rate                  10; train_more_aug.sh: 5
#   IMAGE_SIZE      height and width of the net's input                   224
#   NUM_EXAMPLES    images that train_synthetic.sh generates               1281167

source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/cluster.sh"
hosts_file=${HOSTS:-hosts}
data_dir=${DATA_DIR:-$HOME/data/tf-imagenet}
log_dir=${LOG_DIR:-$HOME/imagenet_resnet}
program=${TRAIN_IMAGENET:-train_imagenet}
if [[ -z ${TRAIN_IMAGENET:-} ]] && ! command -v train_imagenet >/dev/null; then
  installed=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../../bin" 2>/dev/null && pwd)/train_imagenet
  [[ ! -x $installed ]] || program=$installed
fi
mpirun=${MPIRUN:-mpirun}
size=()
[[ -z ${IMAGE_SIZE:-} ]] || size+=(--image_size "$IMAGE_SIZE")

# count NAME DEFAULT: prints a number from the environment.
count() {
  local value=${!1:-$2}
  [[ $value =~ ^[1-9][0-9]{0,11}$ ]] || [[ $1 == WARMUP_EPOCHS && $value == 0 ]] ||
    { say "[$1] expected a number, 1 or more, got \"$value\"." && exit 2; }
  echo "$value"
}

# check_devices N: ends the script unless N is a number and the hosts have that many slots.
check_devices() {
  [[ $1 =~ ^[1-9][0-9]{0,4}$ ]] || { say "[N] expected a number of devices, 1 or more, got \"$1\"." && exit 1; }
  read_hosts "$hosts_file"
  local total=0 n
  for n in "${slots[@]}"; do total=$((total + n)); done
  for n in "${!hosts[@]}"; do
    [[ -z ${ports[$n]}${users[$n]} ]] && continue
    say "[$hosts_file] expected hosts as NAME slots=n, which is what mpirun reads, got a port or a user for ${hosts[$n]}." \
      "hint: write both into ~/.ssh/config, or start the program with tutti-launch -H $hosts_file."
    exit 2
  done
  (($1 <= total)) || { say "[N] expected at most $total devices, the slots of $hosts_file, got $1." && exit 2; }
  for n in "$program" "$mpirun"; do
    command -v "$n" >/dev/null || { say "[start] expected the program $n, got no file of that name." && exit 2; }
  done
}

# Prints the images per device: 256 need more than 15000 MiB of device memory. Without a GPU the processor trains.
batch_size() {
  local memory
  if [[ -n ${BATCH_SIZE:-} ]]; then
    echo "$BATCH_SIZE"
  elif memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null) &&
    [[ ${memory%%$'\n'*} =~ ^[0-9]+$ ]]; then
    if ((${memory%%$'\n'*} > 15000)); then echo 256; else echo 128; fi
  else
    say "no GPU answers (nvidia-smi); a batch of 16 for the processor"
    echo 16
  fi
}

# Prints the number of devices of the first host, which has the checkpoints.
devices_here() {
  local i
  for i in "${!hosts[@]}"; do
    if is_here "$i"; then echo "${slots[$i]}" && return; fi
  done
  echo "${slots[0]}"
}

# run_mpi N HOSTFILE ARGUMENT...: this host opens every connection itself, so the others need no keys for each other. A
# host is filled before the next one. MPI uses TCP, and no interfaces that other hosts cannot reach.
run_mpi() {
  local n=$1 where=$2 name more
  shift 2
  local command=("$mpirun" -np "$n" -mca plm_rsh_no_tree_spawn 1 -bind-to socket -map-by slot
    -mca pml ob1 -mca btl "^openib" -mca btl_tcp_if_exclude "${TCP_IF_EXCLUDE:-lo,docker0}"
    -x PATH)
  # mpirun would warn about an unset variable.
  [[ -z ${LD_LIBRARY_PATH+set} ]] || command+=(-x LD_LIBRARY_PATH)
  # Every host gets the variables of NCCL and Horovod. EXTRA_MPI_PARAMS comes last and overrides them.
  for name in "${!NCCL_@}" "${!HOROVOD_@}"; do command+=(-x "$name"); done
  read -ra more <<<"${EXTRA_MPI_PARAMS:-}" || true
  command+=("${more[@]}")
  [[ -z $where ]] || command+=(-hostfile "$where")
  "${command[@]}" "$program" "$@"
}

# train N ARGUMENT...: trains, then evaluates on this host's devices.
train() {
  local n=$1 batch
  shift
  batch=$(batch_size)
  run_mpi "$n" "$hosts_file" --batch_size "$batch" --log_dir "$log_dir" "$@" "${size[@]}" || return
  case " $* " in *" --synthetic "*) return ;; esac
  run_mpi "$(devices_here)" "" --batch_size "$batch" --log_dir "$log_dir" --data_dir "$data_dir" --eval --num_gpus "$n" \
    --num_epochs "$epochs" "${size[@]}"
}
