#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests tests/gpu/run.sh on a machine with stand-ins for the GPU, the compiler and the programs: its time limits, the
# order of its steps, its waits and its results.
set -euo pipefail
root=${TUTTI_SOURCE_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
python=$(command -v python3) || { echo "SKIP: no python3" && exit 77; }
real_timeout=$(command -v timeout)

fake() { cat >"$work/bin/$1" && chmod +x "$work/bin/$1"; }
mkdir -p "$work/bin" "$work/headers/doctest" "$work/headers/CLI" "$work/log"
touch "$work/headers/doctest/doctest.h" "$work/headers/CLI/CLI.hpp"
fake nvidia-smi <<'EOF'
#!/bin/bash
case $1 in
  -L) for ((i = 0; i < ${FAKE_GPUS:-1}; ++i)); do echo "GPU $i: NVIDIA H200 (UUID: GPU-0)"; done ;;
  *) echo "NVIDIA H200, 9.0" ;;
esac
EOF
# A stand-in for `timeout` shortens all time limits by a factor of sixty.
fake timeout <<EOF
#!/bin/bash
shift
echo "\$1 \$(basename "\$2")" >>"$work/log/limits"
exec "$real_timeout" --kill-after=1 "\$(awk "BEGIN { print \$1 / 60 }")" "\${@:2}"
EOF
fake cmake <<EOF
#!/bin/bash
work=$work
[[ \$* == *'--target help'* ]] && exec cat "$work/targets"
if [[ \$1 != --build ]]; then
  printf '%s\n' "\$@" >"$work/log/configured"
  echo "-- tutti: component cuda: CUDAdnn 13.0"
  exit
fi
tree=\$2
for t in "\${@:3}"; do
  case \$t in
    tests_*) t=\${t#tests_} && file=\$tree/tests/\${t%%_*}/\${t#*_} ;;
    bench_*) file=\$tree/bench/\${t#bench_} ;;
    train_cifar10) file=\$tree/examples/\$t ;;
    tutti-launch) file=\$tree/tools/\$t ;;
    *) continue ;;
  esac
  mkdir -p "\$(dirname "\$file")"
  cp "$work/program" "\$file"
done
EOF
cat >"$work/program" <<EOF
#!/bin/bash
name=\$(basename "\$0")
echo "\$(date +%s.%N) \$name \$*" >>"$work/log/started"
case \$name in
  test_cuda) exec sleep 600 ;;
  test_*) echo "[doctest] test cases: 3 | 3 passed | 0 failed | 0 skipped" ;;
  train_cifar10) echo "test, 6 views of each image: loss 0.5000 top-1 94.01 % top-5 99.80 %  (10000 images)" ;;
  describe_device) echo '{"deviceVer": 900}' ;;
  tutti_step)
    [[ \$1 != --help ]] || { echo "[--nccl]" && exit; }
    [[ -z \${FAKE_BAD_GRAPH:-} || \$* == *--no-graph* ]] || exit 4
    while [[ \$# -gt 0 ]]; do
      case \$1 in
        --model) model=\$2 ;;
        --batch) batch=\$2 ;;
        --precision) precision=\$2 ;;
      esac
      shift
    done
    echo "{\"model\": \"\$model\", \"batch\": \$batch, \"precision\": \"\$precision\", \"images_per_second\": 6000.0}" ;;
esac
EOF
chmod +x "$work/program"
(cd "$root/tests" && grep -lE 'tutti/backends/(cuda|nccl)/|TUTTI_HAS_CUDA|built_backends.hpp' ./*/test_*.cpp | sed -E 's|^\./||; s|/|_|; s|\.cpp$||; s|^|tests_|') >"$work/targets"
printf '%s: phony\n' tests_backends_describe_device bench_tutti_step bench_allreduce train_cifar10 tutti-launch >>"$work/targets"
sed -i 's/$/: phony/; s/: phony: phony/: phony/' "$work/targets"
fake ncu <<EOF
#!/bin/bash
echo "\$*" >"$work/log/ncu"
EOF
cat >>"$work/bin/ncu" <<'EOF'
cat <<'CSV'
==PROF== Connected
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","void norm_apply<bf16, 8>(const T1 *)","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","70"
"0","void norm_apply<bf16, 8>(const T1 *)","gpu__time_duration.sum","us","30"
"1","void norm_apply<bf16, 8>(const T1 *)","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","40"
"1","void norm_apply<bf16, 8>(const T1 *)","gpu__time_duration.sum","us","10"
CSV
EOF
fake compute-sanitizer <<'EOF'
#!/bin/bash
echo "========= ERROR SUMMARY: 0 errors"
EOF
# A stand-in for PyTorch measures one way to run it, and is slow with the next.
fake python3 <<EOF
#!/bin/bash
case "\$*" in
  "-c import torch, torchvision") exit 0 ;;
  *torch_step.py*)
    echo "\$(date +%s.%N) torch_step.py \$*" >>"$work/log/started"
    echo '{"model": "resnet50", "batch": 256, "precision": "bf16", "mode": "eager", "images_per_second": 3000.0}'
    exec sleep 600 ;;
  *) exec "$python" "\$@" ;;
esac
EOF

run() {
  rm -rf "$work/out" "$work/log" && mkdir -p "$work/log"
  PATH=$work/bin:$PATH OUT=$work/out TUTTI_GPU_BUILD=$work/build "$root/tests/gpu/run.sh" "$@" "$work/headers" >"$work/printed" 2>&1
}

echo "== a whole run in which one program hangs"
status=0
run --minutes 8 || status=$?
cat "$work/out/table.txt"
[[ $status == 1 ]] || fail "a step failed, and the status was $status"
files=$(cd "$work/out" && echo *)
[[ $files == "device.json lines.txt logs.tar.gz table.txt" ]] || fail "it left: $files"
tar -tzf "$work/out/logs.tar.gz" | grep '^logs/conformance.log$' >/dev/null || fail "no log in logs.tar.gz"
[[ $(cat "$work/out/device.json") == '{"deviceVer": 900}' ]] || fail "device.json: $(cat "$work/out/device.json")"
order=$(sed -n '/^steps/,/^measured/p' "$work/out/table.txt" | awk 'NR > 2 && NF { print $1 }' | grep -v measured | tr '\n' ' ')
[[ $order == "configure build describe conformance step torch fusion "*" nccl golden sanitizer " ]] || fail "order: $order"
grep -qE '^  conformance +FAILED .*not done after 90 s' "$work/out/table.txt" || fail "the program that hangs is not told of"
grep -qE '^  step +ok ' "$work/out/table.txt" || fail "after one that hangs the others do not go on"
grep -q 'NVIDIA H200, compute capability 9.0, 1 of them' "$work/out/table.txt" || fail "the GPU is not told of"
grep -q "NCCL's kernels, links and aborts were not tested" "$work/out/table.txt" || fail "one rank passes for a test of NCCL"
grep -qE 'norm_apply: 62 % of the memory.s speed, 0.04 ms' "$work/out/table.txt" || fail "Nsight's numbers are not there"
grep -qE 'batch 256, --autotune --fusion .*off 6000, auto 6000, on 6000' "$work/out/table.txt" || fail "no row of f16 with all fusions"

echo "== PyTorch measures alone, and what it has measured before its time ends is in the table"
grep -qE '^  torch +ok .*not all ways' "$work/out/table.txt" || fail "the step of PyTorch"
grep -qE 'ResNet-50 224x224, bf16, batch 256 +6000 images/s +eager 3000' "$work/out/table.txt" || fail "no row of PyTorch"
grep -qE 'ratio +2.00x eager' "$work/out/table.txt" || fail "no ratio"
after=$(awk '/torch_step.py/ { t = $1 } END { print t }' "$work/log/started")
awk -v t="$after" '$2 == "tutti_step" && $1 < t { before = 1 } END { exit !before }' "$work/log/started" || fail "PyTorch began before the steps"

echo "== each result is a line of a file at once"
grep -qE '^[0-9]+ s: ResNet-50 224x224, bf16, batch 256: 6000 images/s' "$work/out/lines.txt" || fail "lines.txt: $(cat "$work/out/lines.txt")"
grep -qE '^[0-9]+ s: test_cuda: status 124' "$work/out/lines.txt" || fail "no line of the program that hangs"
grep -qE '^[0-9]+ s: step conformance ended with 124' "$work/out/lines.txt" || fail "no line of the step"

echo "== ncu leaves the clocks and the caches as they are in training"
grep -q -- '--clock-control none --cache-control none ' "$work/log/ncu" || fail "ncu $(cat "$work/log/ncu")"

echo "== only cases that need a GPU use its time"
! grep -qE ' test_(cuda_kernels|cudnn|cublas|plan_store|fuse_norms|nccl_forming) ' "$work/log/started" || fail "a test without a GPU ran"
[[ $(grep -E ' test_' "$work/log/started" | grep -cvF -- '--test-case=gpu: *') == 0 ]] || fail "cases without a GPU: $(grep ' test_' "$work/log/started")"

echo "== every program of a step has what is left of the step's time"
awk '$2 ~ /^test_/ && $1 > 90 { exit 1 }' "$work/log/limits" || fail "$(cat "$work/log/limits")"
awk '$2 == "test_cuda" { hung = 1; next } hung && $2 ~ /^test_cuda/ && $1 >= 90 { exit 1 }' "$work/log/limits" ||
  fail "programs behind the one that hangs have the whole limit again: $(grep test_ "$work/log/limits")"

echo "== nothing goes on behind the end of the whole"
run --minutes 1 --only describe,step,golden || true
awk '$1 > 50 { exit 1 }' "$work/log/limits" || fail "limits behind the end: $(cat "$work/log/limits")"

echo "== a second GPU gets a rank"
FAKE_GPUS=2 run --minutes 8 --only configure,build,allreduce || true
if grep -q '^  allreduce *skipped' "$work/out/table.txt"; then
  echo "no nccl.h: not tested"
else
  grep -q 'tutti-launch -n 2 ' "$work/log/started" || fail "one GPU was left: $(cat "$work/log/started")"
fi
! grep -q 'were not tested' "$work/out/table.txt" || fail "two GPUs pass for one"

echo "== CIFAR-10 as RecordIO, named as tutti-data names it or with its own name"
for prefix in "" cifar10_; do
  mkdir -p "$work/rec$prefix"
  touch "$work/rec$prefix/${prefix}train.rec" "$work/rec$prefix/${prefix}val.rec"
  run --only cifar10 --data "$work/rec$prefix" || fail "$(cat "$work/printed")"
  [[ $(grep -cF -- "--data-train $work/rec$prefix/${prefix}train.rec --data-val $work/rec$prefix/${prefix}val.rec" "$work/log/started") == 2 ]] ||
    fail "started: $(cat "$work/log/started")"
  grep -q 'CIFAR-10 from JPEGs.* 94.01 %' "$work/out/table.txt" || fail "$(cat "$work/out/table.txt")"
done
for f in train val; do "$python" -c 'import lzma, sys; lzma.open(sys.argv[1], "wb").write(b"records")' "$work/rec/$f.rec.xz"; done
rm "$work"/rec/*.rec
run --only cifar10 --data "$work/rec" || fail "$(cat "$work/printed")"
grep -qF -- "--data-train $work/build/data/train.rec " "$work/log/started" || fail "packed records: $(cat "$work/log/started")"
[[ $(cat "$work/build/data/val.rec") == records ]] || fail "packed records were not unpacked"

echo "== a step that fails with a graph runs without it"
FAKE_BAD_GRAPH=1 run --only step || true
grep -qE '^  step +FAILED .*With --no-graph it runs' "$work/out/table.txt" || fail "$(cat "$work/out/table.txt")"

echo "== programs that were built elsewhere run without a compiler and headers"
rm -f "$work/log/configured"
PATH=$work/bin:$PATH OUT=$work/out TUTTI_GPU_BUILD=$work/build "$root/tests/gpu/run.sh" --prebuilt --only configure,describe,step >"$work/printed" 2>&1 ||
  fail "$(cat "$work/printed")"
grep -qE "^  step +ok " "$work/out/table.txt" || fail "$(cat "$work/out/table.txt")"
[[ ! -e $work/log/configured ]] || fail "CMake ran"

echo "== CUDA next to nvcc, in toolkits and in packages of pip; stb among the headers"
# files FOLDER FILE...: makes empty files.
files() {
  local folder=$1 f
  for f in "${@:2}"; do mkdir -p "$(dirname "$folder/$f")" && touch "$folder/$f"; done
}
parts=(include/nvrtc.h include/cublasLt.h include/cudnn.h include/nccl.h include/crt/host_defines.h)
files "$work/far/cuda" include/cuda_runtime_api.h lib64/libcudart_static.a "${parts[@]}" bin/nvcc bin/compute-sanitizer
chmod +x "$work"/far/cuda/bin/*
files "$work/site/nvidia" cuda_runtime/include/cuda_runtime_api.h cuda_runtime/lib/libcudart.so.12 cuda_nvrtc/include/nvrtc.h \
  cublas/include/cublasLt.h cudnn/include/cudnn.h nccl/include/nccl.h cuda_nvcc/include/crt/host_defines.h
files "$work/site13/nvidia/cu13" include/cuda_runtime_api.h lib/libcudart_static.a "${parts[@]}"
# Python without the packages of this machine; those in PYTHONPATH stay.
fake plain-python <<EOF
#!/bin/bash
exec "$python" -S "\$@"
EOF
# found CODE [FOLDER]: runs CODE with toolkit.sh's functions, without the toolkits of this machine, FOLDER first in PATH.
found() {
  # shellcheck disable=SC2016  # the inner shell expands it
  env -u CUDA_HOME -u CUDA_PATH PATH="${2:+$2:}/usr/bin:/bin" bash -c 'source "$1/tests/gpu/toolkit.sh"
    toolkits=() system_folder=/nowhere
    find_pip_folders "$2"
    eval "$3"' _ "$root" "$work/bin/plain-python" "$1" 2>&1 || true
}
if [[ ! -e /usr/bin/nvcc ]]; then
  [[ $(found cuda_arguments) == "no folder has both"* ]] || fail "without CUDA: $(found cuda_arguments)"
  [[ $(found cuda_arguments "$work/far/cuda/bin") == *"INCLUDE_DIR=$work/far/cuda/include
-DCUDAdnn_LIBRARY=$work/far/cuda/lib64/libcudart_static.a"* ]] || fail "next to nvcc: $(found cuda_arguments "$work/far/cuda/bin")"
  # A header in one folder and a library in a folder around it may be of two versions.
  files "$work/around" cuda/include/cuda_runtime_api.h lib64/libcudart_static.a
  got=$(found "toolkits=('$work/around/cuda') system_folder='$work/around'; cuda_arguments")
  [[ $got == "no folder has both"* ]] || fail "a header and a library of two versions: $got"
  [[ $(found "tool compute-sanitizer" "$work/far/cuda/bin") == "$work/far/cuda/bin/compute-sanitizer" ]] || fail "a tool next to nvcc"
  got=$(PYTHONPATH=$work/site found cuda_arguments)
  for want in "CUDAdnn_INCLUDE_DIR=$work/site/nvidia/cuda_runtime/include" "LIBRARY=$work/site/nvidia/cuda_runtime/lib/libcudart.so.12" \
    "cudnn_INCLUDE_DIR=$work/site/nvidia/cudnn/include" "NCCL_INCLUDE_DIR=$work/site/nvidia/nccl/include" \
    "CMAKE_CXX_FLAGS=-isystem $work/site/nvidia/cuda_nvcc/include"; do
    grep -qF -- "$want" <<<"$got" || fail "pip's packages for CUDA 12: no $want in $got"
  done
  got=$(PYTHONPATH=$work/site13:$work/site found cuda_arguments)
  [[ $got == *"LIBRARY=$work/site13/nvidia/cu13/lib/libcudart_static.a"* && $got == *"cudnn_INCLUDE_DIR=$work/site13/nvidia/cu13/include"* && $got != *CXX_FLAGS* ]] ||
    fail "pip's packages for CUDA 13: $got"
fi
files "$work/headers" stb/stb_image.h
CUDA_HOME=$work/far/cuda run --only configure || fail "$(cat "$work/printed")"
for want in "-Dstb_INCLUDE_DIR=$work/headers" "-DCUDAdnn_LIBRARY=$work/far/cuda/lib64/libcudart_static.a"; do
  grep -qxF -- "$want" "$work/log/configured" || fail "CMake was not told $want: $(cat "$work/log/configured")"
done

echo "$failures failed"
exit $((failures > 0))
