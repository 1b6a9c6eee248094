#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests that generate-trainer writes the right scripts for each kind of hosts, and refuses bad arguments.
set -uo pipefail
generate=${TUTTI_BUILD_DIR:?}/tools/generate-trainer
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0
complain() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
printf '# the hosts\nuser@a.example:2200 slots=2\r\n\n[fe80::1]\n' >hosts
mkdir "in it"
printf '#!/bin/sh\nprintf "%%s\\n" "<$CUDA_VISIBLE_DEVICES>" "$@"\n' >"in it/prog'ram"
chmod +x "in it/prog'ram"
"$generate" --workers_file_path hosts --worker-count 2 --worker_gpu_count=2 --trainer_script_dir "to/sh ared" --batch_size 128 \
  --log_dir 'lo"gs' --training_script "in it/prog'ram" first 'a$b `c`; *' --train_dir=x --neg -1 >out 2>&1 || complain "status $?: $(cat out)"
[[ $(ls "to/sh ared") == $'a.example.sh\nfe80::1.sh\njob.key' ]] || complain "files: $(ls "to/sh ared")"
[[ $(stat -c %a "to/sh ared/job.key" "to/sh ared/a.example.sh") == $'600\n755' ]] || complain "modes: $(ls -l "to/sh ared")"
grep -qxE '[0-9a-f]{64}' "to/sh ared/job.key" || complain "the file holds no key"
grep -qF "$(cat "to/sh ared/job.key")" "to/sh ared"/*.sh out && complain "the key stands in a script"
# Runs the command of the second host in a shell in another folder.
(cd / && bash "$work/to/sh ared/fe80::1.sh") || complain "the script: status $?"
for _ in $(seq 100); do [[ $(cat lo\"gs/{ps1,worker2,worker3} 2>/dev/null | grep -c ps_key_file) == 3 ]] && break || sleep 0.1; done
[[ $(ls lo\"gs) == $'ps1\nworker2\nworker3' ]] || complain "logs: $(ls lo\"gs)"
# expect FILE GPU KIND INDEX: compares the arguments of a process with the expected ones.
expect() {
  printf '%s\n' "<$2>" first 'a$b `c`; *' --batch_size 128 --train_dir=x --neg -1 --backend=cuda "--ps_hosts=a.example:2222,[fe80::1]:2222" \
    "--worker_hosts=a.example:2230,a.example:2231,[fe80::1]:2230,[fe80::1]:2231" --job_name=$3 --task_index=$4 \
    "--ps_key_file=$work/to/sh ared/job.key" >want
  diff want "lo\"gs/$1" || complain "$1 was started otherwise"
}
expect ps1 "" ps 1
expect worker2 0 worker 2
expect worker3 1 worker 3
# A second run makes a new key. If the file is a link, the key replaces the link, and the link's target is unchanged.
key=$(cat "to/sh ared/job.key")
ln -sf "$work/hosts" "to/sh ared/job.key"
cp hosts before
"$generate" --workers_file_path hosts --worker_count 2 --worker_gpu_count 2 --trainer_script_dir "to/sh ared" --training_script p >out 2>&1 ||
  complain "again: $(cat out)"
[[ -f "to/sh ared/job.key" && ! -L "to/sh ared/job.key" && $(cat "to/sh ared/job.key") != "$key" ]] || complain "the same key"
cmp -s hosts before || complain "it wrote through a link"
# The caller's choice of a backend has precedence.
for own in --backend=onednn --gpus=; do
  "$generate" --workers_file_path hosts --worker_count 2 --worker_gpu_count 2 --trainer_script_dir own --training_script p "$own" >out 2>&1 ||
    complain "$own: $(cat out)"
  grep -q "backend=cuda" own/*.sh && complain "$own: --backend=cuda all the same"
done
# A host without a GPU has one worker on the CPU. No key is made if the arguments of the program exclude it.
printf 'b\n' >one
"$generate" --workers_file_path one --worker_count 1 --worker_gpu_count 0 --trainer_script_dir cpu --training_script p --ps-plain >out 2>&1 ||
  complain "no GPU: $(cat out)"
[[ $(grep -c "CUDA_VISIBLE_DEVICES='' 'p'" cpu/b.sh) == 2 && $(grep -c . cpu/b.sh) == 7 ]] || complain "no GPU: $(cat cpu/b.sh)"
grep -q "backend" cpu/b.sh && complain "no GPU: a backend in $(cat cpu/b.sh)"
[[ ! -e cpu/job.key ]] && ! grep -q ps_key_file cpu/b.sh || complain "a key without need"

# refused CODE WHAT TEXT ARGUMENTS...: checks that generate-trainer ends with CODE and prints TEXT.
all=(--workers_file_path one --worker_count 1 --worker_gpu_count 0 --trainer_script_dir refused --training_script p)
refused() {
  local code=$1 what=$2 text=$3
  shift 3
  "$generate" "$@" >out 2>&1
  [[ $? == "$code" ]] || complain "$what: not status $code: $(cat out)"
  grep -qF -- "$text" out || complain "$what: it does not say '$text': $(cat out)"
  [[ ! -e refused ]] || { complain "$what: something was written" && rm -rf refused; }
}
refused 2 "nothing" "[--workers_file_path] expected a value, got none"
for ((i = 0; i < 10; i += 2)); do
  refused 2 "no ${all[i]}" "[${all[i]}] expected a value" "${all[@]:0:i}" "${all[@]:i+2}"
done
refused 2 "another count" "[--worker_count] expected 1, the number of hosts in one, got 2" "${all[@]}" --worker_count 2
refused 2 "an invalid count" "[--worker_count] expected a number" "${all[@]}" --worker_count x
refused 2 "less than no GPU" "[--worker_gpu_count] expected a number" "${all[@]}" --worker_gpu_count -1
refused 3 "no file" "none.txt" "${all[@]}" --workers_file_path none.txt
refused 2 "other slots" "expected no slots=" --workers_file_path hosts --worker_count 2 --worker_gpu_count 3 --trainer_script_dir refused --training_script p
for bad in '-x' 'a b c' 'a;id' '$(id)' 'a/b' '../a' "a'b" 'a slots=0' ''; do
  printf '%s\n' "$bad" >bad
  refused 3 "a host '$bad'" "[bad" --workers_file_path bad --worker_count 1 --worker_gpu_count 0 --trainer_script_dir refused --training_script p
done
refused 2 "a line in a word" "no control characters" "${all[@]}" $'--x=a\nid'
"$generate" --help | grep -q "usage: generate-trainer" || complain "--help: $("$generate" --help)"
((failures == 0)) && echo "all good"
exit $((failures > 0))
