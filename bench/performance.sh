#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes the tables of docs/explanation/performance.md anew on this machine, one after the other. It takes hours, and the first run
# installs PyTorch, ONNX Runtime and OpenVINO from PyPI.
#   bench/performance.sh [--out FOLDER] [--list] [NAME...]
# --out FOLDER   each table goes to FOLDER/NAME.txt, and is kept if it exists           build/performance
# --list         prints the names and their commands and ends
# NAME           makes these tables only
# It needs a build with -DTUTTI_BUILD_BENCH=ON -DTUTTI_BUILD_EXAMPLES=ON in build. Ends with 1 if a table failed; a second call continues.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
newer='mobilenet_v2:32 convnext_tiny:16 resnext50_32x4d:16 wide_resnet50_2:8 wrn28_10:16 resnet50d:16 seresnet50:16'
tables=(
  "steps bench/baselines/run.py steps input"
  "newer_nets bench/baselines/run.py steps --models '$newer'"
  "recipe bench/baselines/run.py recipe"
  "files bench/baselines/predict.py"
  "inference bench/baselines/predict.py --net --batch 1 4 32"
  "allreduce bench/baselines/allreduce.py"
  "compiling bench/compile_time.py"
)
wrong() {
  echo "performance.sh: $1" >&2
  exit 2
}
out=build/performance list=0 chosen=()
while (($#)); do
  case $1 in
    --out)
      [[ -n ${2:-} ]] || wrong "[--out] expected a folder after it, got no word."
      out=$2
      shift
      ;;
    --list) list=1 ;;
    -h | --help)
      sed -n '3,/^set -/{/^set -/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *)
      [[ " ${tables[*]%% *} " == *" $1 "* ]] || wrong "[arguments] expected $(printf '%s, ' "${tables[@]%% *}")--out or --list, got $1."
      chosen+=("$1")
      ;;
  esac
  shift
done
failed=0
for table in "${tables[@]}"; do
  name=${table%% *} command=${table#* }
  ((${#chosen[@]} == 0)) || [[ " ${chosen[*]} " == *" $name "* ]] || continue
  if ((list)); then
    echo "$name: $command"
    continue
  fi
  if [[ -f $out/$name.txt ]]; then
    echo "performance.sh: $out/$name.txt exists" >&2
    continue
  fi
  mkdir -p "$out"
  echo "performance.sh: $command" >&2
  if bash -c "$command" >"$out/$name.new"; then
    mv "$out/$name.new" "$out/$name.txt"
  else
    echo "performance.sh: $name failed; its output is in $out/$name.new" >&2
    failed=1
  fi
done
exit $failed
