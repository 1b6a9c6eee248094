#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# stand_ins.sh FOLDER [ARCHIVE]: makes stand-ins for a rehearsal of first_light.sh: FOLDER/bin with the programs of a GPU's
# driver and of NVIDIA's tools, and FOLDER/first-light.tar.xz or FOLDER/packed with programs that print what the real ones
# print. With an archive of real programs, each stand-in first starts the real program, which must load without a GPU.
set -euo pipefail
folder=$1 archive=${2:-}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "$folder/bin" "$folder/packed/tree"
fake() { cat >"$folder/bin/$1" && chmod +x "$folder/bin/$1"; }
fake nvidia-smi <<'EOF'
#!/bin/bash
case ${1:-} in
  -L) for ((i = 0; i < ${FAKE_GPUS:-2}; ++i)); do echo "GPU $i: NVIDIA H100 80GB HBM3 (UUID: GPU-$i)"; done ;;
  --query*) echo "NVIDIA H100 80GB HBM3, 9.0" ;;
  *) echo "a stand-in for a driver" ;;
esac
EOF
fake ncu <<'EOF'
#!/bin/bash
cat <<'CSV'
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","void norm_apply<bf16, 8>(const T1 *)","dram__throughput.avg.pct_of_peak_sustained_elapsed","%","70"
"0","void norm_apply<bf16, 8>(const T1 *)","gpu__time_duration.sum","us","30"
CSV
EOF
fake compute-sanitizer <<'EOF'
#!/bin/bash
echo "========= ERROR SUMMARY: 0 errors"
EOF
python=$(command -v python3)
fake python3 <<EOF
#!/bin/bash
case "\$*" in
  "-c import torch, torchvision") exit 0 ;;
  *"import torch;"*) echo "PyTorch, a stand-in" ;;
  *torch_step.py*)
    echo '{"model": "resnet50", "batch": 256, "precision": "bf16", "mode": "eager", "images_per_second": 3000.0}' ;;
  *) exec "$python" "\$@" ;;
esac
EOF
cat >"$folder/program" <<'EOF'
#!/bin/bash
name=$(basename "$0")
real=$(dirname "$0")/.real/$name
if [[ -x $real ]]; then
  # The real program must start on a machine without Debian's packages. Without a GPU it does no more than this.
  case $name in
    test_*) "$real" --list-test-cases --test-case="gpu: *" >/dev/null || exit 90 ;;
    describe_device) status=0 && "$real" >/dev/null 2>&1 || status=$? && [[ $status == 4 ]] || exit 91 ;;
    *) "$real" --help >/dev/null || exit 92 ;;
  esac
fi
case $name in
  test_*) echo "[doctest] test cases: 3 | 3 passed | 0 failed | 0 skipped" ;;
  train_cifar10) echo "test, 6 views of each image: loss 0.5000 top-1 94.01 % top-5 99.80 %  (10000 images)" ;;
  describe_device) cat "$(dirname "$0")/device.json" ;;
  tutti_step)
    [[ $1 != --help ]] || { echo "[--nccl]" && exit; }
    while [[ $# -gt 0 ]]; do
      case $1 in
        --model) model=$2 ;;
        --batch) batch=$2 ;;
        --precision) precision=$2 ;;
      esac
      shift
    done
    echo "{\"model\": \"$model\", \"batch\": $batch, \"precision\": \"$precision\", \"images_per_second\": 6000.0}" ;;
esac
EOF
chmod +x "$folder/program"
place() {
  mkdir -p "$folder/packed/$(dirname "$1")"
  cp "$folder/program" "$folder/packed/$1"
}
if [[ -n $archive ]]; then
  tar -xJf "$archive" -C "$folder/packed"
  while read -r f; do
    mkdir -p "$(dirname "$f")/.real"
    mv "$f" "$(dirname "$f")/.real/"
    cp "$folder/program" "$f"
  done < <(find "$folder/packed/tree" -type f -perm -u+x)
else
  (cd "$root/tests" && grep -l 'TEST_CASE("gpu: ' ./*/test_*.cpp) | sed -E 's|^\./||; s|\.cpp$||' | while read -r t; do place "tree/tests/$t"; done
  for f in tests/backends/describe_device bench/tutti_step bench/allreduce examples/train_cifar10 tools/tutti-launch; do place "tree/$f"; done
fi
cp "$root/tests/backends/devices/h100.json" "$folder/packed/tree/tests/backends/device.json"
