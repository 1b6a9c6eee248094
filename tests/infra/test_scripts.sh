#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests the cluster scripts with stand-ins for ssh, rsync, mpirun, nvidia-smi and the training program.
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
    -o | -l) shift ;;
    -p) port=:$2 && shift ;;
    --) host=$2 && shift 2 && break ;;
  esac
  shift
done
cat # what ssh would eat
echo "$host${port:-}: $*"
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
stand_in getent <<<'[[ $2 != this-one ]] || echo "127.0.0.1 STREAM this-one"'

printf 'node1 slots=4\r\n# a comment\n\nnode-2   # and another\nlocalhost slots=2' >hosts
check "runclust visits all hosts in order" $'node1: df -h /\nnode-2: df -h /\nlocalhost: df -h /' \
  "$("$scripts/runclust" hosts "df -h /" <<<"input of the caller")"
check "runclust verbose" $'On node1\nnode1: x\nOn node-2\nnode-2: x\nOn localhost\nlocalhost: x' \
  "$("$scripts/runclust" hosts x verbose)"
printf 'a:2222 slots=2\nu@b\n[fe80::1%%eth0]:22\t# far\n[::2]\nb slots=1\n#c\na:02222 slots=02\nu@b\n' >some
got=$("$scripts/runclust" some x 2>&1)
check "a host in two ways: $got" "2 some line 5" "$? $(grep -o "some line 5" <<<"$got")"
sed -i 5d some
check "hosts with ports, users, IPv6, and again" $'a:2222: x\nb: x\nfe80::1%eth0:22: x\n::2: x' "$("$scripts/runclust" some x)"
printf 'localhost\n%s slots=3\n127.0.0.1\nthis-one\nother\n%s@localhost\n' "$(hostname)" nobody-here >some
sed -i '$d' some
check "copyclust skips this host under all its names" 'some other:/data ' "$("$scripts/copyclust" some some /data)"
printf 'localhost:2222\n[::9]:7\n' >some
check "copyclust copies through a port, and to an IPv6 address" $'some localhost:/data \nsome [::9]:/data ' \
  "$("$scripts/copyclust" some some /data)"

# The launcher reads the same files, and must refuse exactly the texts that the script refuses.
launch=${TUTTI_BUILD_DIR:-/nowhere}/tools/tutti-launch
if [[ -x $launch ]]; then
  mkdir refusing && printf '#!/bin/sh\nexit 255\n' >refusing/ssh && chmod +x refusing/ssh
  for line in a a.b-c_d A1 -a _a a- 'a b' 'a:1' 'a:0' 'a:65535' 'a:65536' 'a:' 'a:b' 'a::1' '[::1]' '[::1]:22' '[::1]:' '[1::2::3]' \
    '[1:2:3:4:5:6:7:8]' '[1:2:3:4:5:6:7]' '[1:2:3:4:5:6:7:8:9]' '[::ffff:1.2.3.4]' '[::1.2.3.256]' '[12345::]' '[:1]' '[fe80::1%e0]' \
    '[fe80::1%]' '[]' '::1' 'a slots=1' 'a slots=0' 'a slots=4096' 'a slots=4097' 'a slots=x' 'a slots=1 b' 'a slots=1 # b' 'a#b' \
    'u@a' '_u@a:7' '@a' 'u@' 'u@v@a' '-u@a' 'a;b' '$(a)' '*' $'a\tslots=2' $'b\nb' $'b\nb slots=1' $'b\nb slots=2' $'b\nb:7' $'b\nu@b' ' ' '#'; do
    printf '%s\n' "$line" >one
    (me=test && source "$scripts/cluster.sh" && read_hosts one) 2>/dev/null
    mine=$?
    PATH=$folder/refusing:$PATH timeout 20 "$launch" -H one -n 1 --launcher ssh --connect-timeout 1 true >/dev/null 2>said </dev/null
    theirs=$?
    ((theirs == 3)) && theirs=2 || theirs=0
    check "the launcher's reading of \"$line\": $(head -c 200 said)" "$theirs" "$mine"
  done
fi
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

run() { "$scripts/$1" "${@:2}" 2>/dev/null; }
base="-mca plm_rsh_no_tree_spawn 1 -bind-to socket -map-by slot -mca pml ob1 -mca btl ^openib -mca btl_tcp_if_exclude lo,docker0 -x PATH -x LD_LIBRARY_PATH"
export DATA_DIR=/d LOG_DIR=/l LD_LIBRARY_PATH=/libraries
memory() { stand_in nvidia-smi <<<"echo $1; echo $1"; }
memory 16160
check "train.sh on large devices, evaluation on this host" \
  "-np 6 $base -hostfile hosts train_imagenet --batch_size 256 --log_dir /l --data_dir /d --num_epochs 90 --lr_decay_mode poly --warmup_epochs 10 --clear_log 
-np 2 $base train_imagenet --batch_size 256 --log_dir /l --data_dir /d --eval --num_gpus 6 --num_epochs 90 " "$(run train.sh 6)"
check "mpirun is not told of LD_LIBRARY_PATH if it is not set" 0 \
  "$(unset LD_LIBRARY_PATH && run train.sh 6 | grep -c LD_LIBRARY_PATH)"
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
check "what is set for NCCL and Horovod reaches every host, and the caller's own arguments follow" \
  "LD_LIBRARY_PATH -x NCCL_MIN_NRINGS -x HOROVOD_FUSION_THRESHOLD -x A=1 --tag-output -hostfile" \
  "$(NCCL_MIN_NRINGS=4 HOROVOD_FUSION_THRESHOLD=16777216 EXTRA_MPI_PARAMS="-x A=1 --tag-output" run train_synthetic.sh |
    grep -o 'LD_LIBRARY_PATH .* -hostfile')"
for line in 'a:22 slots=128' 'u@a slots=128'; do
  printf '%s\n' "$line" >far
  got=$(HOSTS=far "$scripts/train_synthetic.sh" 2>&1)
  check "mpirun cannot read \"$line\": $got" "2 tutti-launch -H far" "$? $(grep -o "tutti-launch -H far" <<<"$got")"
done
# Options for another data set: its size and the length of its run.
check "train.sh for another data set" \
  "-np 2 $base -hostfile hosts train_imagenet --batch_size 256 --log_dir /l --data_dir /d --num_epochs 30 --lr_decay_mode poly --warmup_epochs 2 --clear_log --image_size 64 
-np 128 $base train_imagenet --batch_size 256 --log_dir /l --data_dir /d --eval --num_gpus 2 --num_epochs 30 --image_size 64 " \
  "$(EPOCHS=30 WARMUP_EPOCHS=2 IMAGE_SIZE=64 run train.sh 2)"
check "train_more_aug.sh for another data set" 1 \
  "$(EPOCHS=30 run train_more_aug.sh 256 | grep -c -- '--num_epochs 30 --clear_log')"
check "train_synthetic.sh for another data set" 1 \
  "$(EPOCHS=2 NUM_EXAMPLES=50000 run train_synthetic.sh | grep -c -- '--synthetic --num_epochs 2 --clear_log --num_examples 50000')"
check "nothing says which precision" 0 "$(run train.sh 6 | grep -c -- '--precision\|fp16')"
EPOCHS=many run train.sh 2
check "an invalid number of epochs" 2 $?
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
