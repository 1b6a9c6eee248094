#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The cluster scripts with stand-ins for ssh, rsync, mpirun, nvidia-smi and the training program.
set -uo pipefail
scripts=$TUTTI_SOURCE_DIR/infra/scripts
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/bin"
cd "$folder" || exit 1
failed=0
check() { # check WHAT EXPECTED GOT
  if [[ $2 != "$3" ]]; then
    printf 'FAILED: %s\n  expected: %s\n  got:      %s\n' "$1" "$2" "$3"
    failed=1
  fi
}
stand_in() { # stand_in NAME <<< body
  { echo '#!/usr/bin/env bash' && cat; } >"bin/$1"
  chmod +x "bin/$1"
}
export PATH=$folder/bin:$PATH
stand_in ssh <<'S'
host=
while (($#)); do
  case $1 in
    -o) shift ;;
    --) host=$2 && shift 2 && break ;;
  esac
  shift
done
cat # what ssh would eat
echo "$host: $*"
[[ $host != bad ]] || exit 7
S
stand_in rsync <<'S'
printf '%s\n' "${@: -2}" | tr '\n' ' '
echo
S
stand_in mpirun <<'S'
printf '%s ' "$@"
echo
S
stand_in train_imagenet <<<''

printf 'node1 slots=4\r\n# a comment\n\nnode-2   # and another\nlocalhost slots=2' >hosts
check "runclust visits all hosts in order" $'node1: df -h /\nnode-2: df -h /\nlocalhost: df -h /' \
  "$("$scripts/runclust" hosts "df -h /" <<<"input of the caller")"
check "runclust verbose" $'On node1\nnode1: x\nOn node-2\nnode-2: x\nOn localhost\nlocalhost: x' \
  "$("$scripts/runclust" hosts x verbose)"
printf 'bad\nnode1\n' >some
check "runclust goes on after a failure and reports it" $'bad: x\nnode1: x 7' "$("$scripts/runclust" some x 2>/dev/null) $?"
check "copyclust skips this host" $'some node1:/data \nsome node-2:/data ' "$("$scripts/copyclust" hosts some /data)"
for line in '-oProxyCommand=touch x' 'a b' 'a slots=0' 'a slots=x' 'a;touch x' '$(touch x)' '../a' 'a slots=2 b'; do
  printf 'fine\n%s\n' "$line" >hostile
  got=$("$scripts/runclust" hostile x 2>&1)
  check "a hosts file with \"$line\"" 2 $?
  [[ $got == *"hostile line 2"* && $got != *"fine: x"* ]] || check "the message about \"$line\"" "line 2, nothing run" "$got"
  [[ ! -e x ]] || check "\"$line\" runs" nothing something
done
"$scripts/runclust" nowhere x 2>/dev/null
check "no hosts file" 3 $?
for s in runclust copyclust train.sh train_more_aug.sh; do
  "$scripts/$s" 2>/dev/null
  check "$s without arguments" 1 $?
done

run() { "$scripts/$@" 2>/dev/null; }
base="-mca plm_rsh_no_tree_spawn 1 -bind-to socket -map-by slot -mca pml ob1 -mca btl ^openib -mca btl_tcp_if_exclude lo,docker0 -x PATH -x LD_LIBRARY_PATH"
export DATA_DIR=/d LOG_DIR=/l
memory() { stand_in nvidia-smi <<<"echo $1; echo $1"; }
memory 16160
check "train.sh on large devices, evaluation on this host" \
  "-np 6 $base -hostfile hosts train_imagenet --batch_size 256 --log_dir /l --data_dir /d --num_epochs 90 --lr_decay_mode poly --warmup_epochs 10 --clear_log 
-np 2 $base train_imagenet --batch_size 256 --log_dir /l --data_dir /d --eval --num_gpus 6 --num_epochs 90 " "$(run train.sh 6)"
memory 11441
check "small devices" 2 "$(run train.sh 6 | grep -c -- '--batch_size 128 ')"
stand_in nvidia-smi <<<'exit 9'
check "no device" 2 "$(run train.sh 6 | grep -c -- '--batch_size 16 ')"
check "a batch size that is given" 2 "$(BATCH_SIZE=7 run train.sh 6 | grep -c -- '--batch_size 7 ')"
memory 16160
printf 'a slots=128\nb slots=128\n' >hosts
check "train_synthetic.sh takes 8, and evaluates nothing" \
  "-np 8 $base -hostfile hosts train_imagenet --batch_size 256 --log_dir /l --synthetic --num_epochs 5 --clear_log " \
  "$(run train_synthetic.sh)"
check "train_synthetic.sh 128 adds LARC" 1 "$(run train_synthetic.sh 128 | grep -c -- '--use_larc --loss_scale 256')"
check "train_more_aug.sh" 1 "$(run train_more_aug.sh 256 | grep -c -- '--increased_aug --mom 0.977 --wdecay 0.0005 --loss_scale 256 --use_larc --lr_decay_mode linear_cosine --warmup_epochs 5')"
run train.sh 257
check "more devices than slots" 2 $?
run train.sh 0
check "no devices" 1 $?
TRAIN_IMAGENET=not-there run train.sh 2
check "no program" 2 $?
stand_in mpirun <<<'exit 5'
run train.sh 2
check "a failed training is the script's exit code, and nothing is evaluated" 5 $?
exit $failed
