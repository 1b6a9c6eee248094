#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The first half hour on a GPU: packs the programs here, and runs them there in four short calls.
usage() {
  cat <<'EOF'
usage: tests/gpu/first_light.sh pack [--largest MB] HEADERS_DIR [DATA]
       builds the programs and packs them into build/first-light.tar.xz
       tests/gpu/first_light.sh call 1|2|3|4 [MINUTES]   on the machine with the GPU, in a copy of this tree
       tests/gpu/first_light.sh --rehearse [ARCHIVE]  all four calls here, with stand-ins for the GPU and its tools

  --largest MB  the largest size of the archive, in units of 2^20 bytes (default: 64)
  MINUTES       the time of this call, 1 to 9; what comes last in a call is left out if it is short
  HEADERS_DIR   as for tests/gpu/run.sh; DATA: folder with CIFAR-10 as train.rec.xz and val.rec.xz, which is packed too
  ARCHIVE       the archive that --rehearse uses; without it the programs are stand-ins too

call 1 (3 minutes): the machine and the GPU, compared with the description with which plans were made; the tests of
memory, ResNet and graphs; one measurement. 2 (7): conformance, steps, fusions, the first step. 3 (6): PyTorch, eager
first, next to our steps; CIFAR-10. 4 (5): Nsight Compute, memcheck and racecheck, nets of PyTorch, NCCL on all GPUs.
Each call writes into $OUT (default: build/gpu/out), line by line, so a call that is cut short leaves what it has.
Exit status: 0, 1 if a part failed or did not run, 2 for wrong options or a missing or too large archive.
EOF
}
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${TUTTI_GPU_BUILD:-$root/build/gpu}
out=${OUT:-$build/out}
archive=${TUTTI_GPU_ARCHIVE:-$root/build/first-light.tar.xz}
largest=$((64 << 20)) # the largest size of the archive in bytes
die() {
  echo "first_light.sh: $*" >&2
  exit 2
}
minutes=(0 3 7 6 5)
# The steps of run.sh of each call; call 1 has none.
parts=("" "" "conformance,step,fusion,first-step,libraries" "step,torch,cifar10" "bandwidth,sanitizer,golden,nccl,allreduce")

pack() {
  if [[ ${1:-} == --largest ]]; then
    [[ ${2:-} =~ ^[1-9][0-9]{0,6}$ ]] || die "--largest wants a number of MB, got '${2:-}'"
    largest=$(($2 << 20))
    shift 2
  fi
  [[ -d ${1:-} ]] || die "no folder of headers '${1:-}'"
  [[ -z ${2:-} || -d ${2:-} ]] || die "no folder of data '${2:-}'"
  local from=$root/build/gpu-pack work t f needs
  TUTTI_GPU_BUILD=$from OUT=$from/out "$root/tests/gpu/run.sh" --portable --only configure,build --minutes 60 "$1" || exit 1
  work=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder of now
  trap "rm -rf '$work'" EXIT
  for f in "$from"/tree/tests/*/test_* "$from"/tree/tests/backends/describe_device "$from"/tree/bench/{tutti_step,allreduce} \
    "$from"/tree/examples/train_cifar10 "$from"/tree/tools/tutti-launch; do
    [[ -f $f && -x $f ]] || continue
    # The other machine has the C library, but not Debian's packages. CUDA's libraries are opened by name.
    needs=$(readelf -d "$f" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p' | grep -vE '^(lib(c|m|dl|rt|pthread)\.so\.[0-9]+|ld-linux.*)$')
    [[ -z $needs ]] || die "$f needs libraries that the other machine may lack: ${needs//$'\n'/ }"
    t=$work/tree/${f#"$from"/tree/}
    mkdir -p "$(dirname "$t")"
    strip -o "$t" "$f"
  done
  [[ -z ${2:-} ]] || { mkdir -p "$work/data" && cp "$2"/*.rec.xz "$work/data/"; }
  pack_folder "$work"
}
# pack_folder FOLDER: makes the archive. Records are packed already, so they are added without another compression.
pack_folder() {
  mkdir -p "$(dirname "$archive")"
  XZ_OPT=-6 tar -cJf "$archive" -C "$1" .
  local bytes
  bytes=$(stat -c %s "$archive")
  ((bytes <= largest)) || die "$archive has $bytes bytes, and --largest allows $largest bytes"
  echo "$archive: $((bytes >> 10)) KiB, $(find "$1" -type f | wc -l) files"
}
unpack() {
  [[ -f $archive ]] || die "no archive $archive: run '$0 pack' where the compiler is"
  mkdir -p "$build"
  if command -v xz >/dev/null; then
    tar -xJf "$archive" -C "$build"
  else
    python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$archive" "$build"
  fi || die "$archive cannot be unpacked"
}

# --- Call 1.
start=$SECONDS failed=0
line() { echo "$((SECONDS - start)) s: $*" | tee -a "$out/first.txt"; }
# part NAME SECONDS COMMAND...: runs a command for at most so many seconds; its last lines become lines of the results.
part() {
  local name=$1 limit=$2 status=0 left=$((minutes[1] * 60 - 10 - SECONDS + start))
  ((left > 0)) || { line "$name: no time is left" && failed=1 && return 1; }
  ((limit <= left)) || limit=$left
  timeout --kill-after=5 "$limit" "${@:3}" >"$out/first-$name.log" 2>&1 || status=$?
  ((status == 0)) || failed=1
  line "$name: status $status: $(tail -n "${lines:-1}" "$out/first-$name.log" | tr '\n' ' ' | head -c 700)"
  return "$status"
}
machine() {
  nvidia-smi || true
  nvcc --version 2>/dev/null | tail -n 2
  ls -d /usr/local/cuda* 2>/dev/null
  { ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | grep -E 'libcudnn\.|cublasLt|nvrtc\.|nccl|cudart'
  python3 -c 'import torch; print("PyTorch", torch.__version__, "cuDNN", torch.backends.cudnn.version())' 2>&1 | tail -n 1
  free -g | sed -n 2p
  echo "$(nproc) processors, $(nvidia-smi -L 2>/dev/null | grep -c '^GPU ') GPUs"
}
# Compares the GPU's description with the planned one of the same name: a difference means that plans made without a GPU
# may not be those of this GPU.
compare() {
  "$build/tree/tests/backends/describe_device" >"$out/device.json" || return
  python3 - "$out/device.json" "$root"/tests/backends/devices/*.json <<'EOF'
import json, sys
here = json.load(open(sys.argv[1]))
planned = [(p, json.load(open(p))) for p in sys.argv[2:]]
def words(d):
    return set(d.get("deviceName", "").replace("-", " ").split()) - {"NVIDIA", "Tesla", "GeForce"}
name, best = max(planned, key=lambda p: (p[1]["deviceVer"] == here.get("deviceVer"), len(words(p[1]) & words(here))))
own = {"driverVer", "pciDeviceId", "cudaDeviceId", "totalGlobalMem"}  # of the machine
different = [f"{k}: planned {best.get(k)}, here {here.get(k)}" for k in sorted(set(best) | set(here))
             if k not in own and best.get(k) != here.get(k)]
print(f"{here.get('deviceName')} as {name.rsplit('/', 1)[-1]}:", "; ".join(different) or "as planned")
EOF
}
call_1() {
  local tree=$build/tree step=("$build/tree/bench/tutti_step" --backend cuda --model resnet50 --batch 256 --precision bf16 --seconds 3) libraries
  : >"$out/first.txt"
  source "$root/tests/gpu/toolkit.sh"
  find_pip_folders "$(command -v python3 || true)"
  libraries=$(printf '%s/lib:' ${pip_folders[@]+"${pip_folders[@]}"})
  export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:-}" XDG_CACHE_HOME=$build/cache
  lines=12 part machine 20 bash "$0" machine
  part device 20 bash "$0" compare
  part memory 40 "$tree/tests/backends/test_cuda" --no-colors --test-case="gpu: memory*,gpu: everything*,gpu: ResNet*,gpu: captured*"
  part libraries 40 "$tree/tests/backends/test_cuda_libraries" --no-colors --test-case="gpu: *"
  # These two decide whether anything is wrong at all, and give the number.
  part step 40 "${step[@]}"
  part step-without-graph 40 "${step[@]}" --no-graph
}

call() {
  [[ ${1:-} =~ ^[1-4]$ ]] || die "call wants a number from 1 to 4, got '${1:-}'"
  [[ ${2-1} =~ ^[1-9]$ ]] || die "call wants a number of minutes from 1 to 9, got '$2'"
  minutes[$1]=${2:-${minutes[$1]}}
  mkdir -p "$out"
  unpack
  local data=() f
  if [[ $1 == 1 ]]; then
    call_1
    return $failed
  fi
  for f in "$build"/data/*.rec.xz; do [[ ! -f $f ]] || data=(--data "$build/data"); done
  "$root/tests/gpu/run.sh" --prebuilt --minutes "${minutes[$1]}" --only "${parts[$1]}" ${data[@]+"${data[@]}"}
}

# --- The rehearsal.
rehearse() {
  local work way="" try n status all=0 began=$SECONDS given=${1:-}
  [[ -z $given || -f $given ]] || die "no archive $given"
  work=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder of now
  trap "rm -rf '$work'" EXIT
  for try in 'unshare -m' 'unshare -rm'; do
    if [[ -z $way ]] && $try true 2>/dev/null; then way=$try; fi
  done
  [[ -n $way ]] || { echo "SKIP: no mount namespace" && exit 77; }
  if [[ -n $given ]]; then given=$(readlink -f "$given"); fi
  "$root/tests/gpu/stand_ins.sh" "$work" "$given" || die "no stand-ins"
  archive=$work/first-light.tar.xz
  [[ -f $archive ]] || pack_folder "$work/packed"
  for n in 1 2 3 4; do
    status=0
    # Without the headers of Debian's packages and the toolkit.
    # shellcheck disable=SC2016  # the inner shell expands it
    $way sh -c 'for hidden in /usr/include /usr/local/cuda /usr/lib/cmake /usr/share/cmake-3.25; do
        [ ! -d $hidden ] || mount -t tmpfs none $hidden || exit 3; done
      shift && exec "$@"' _ _ env PATH="$work/bin:/usr/bin:/bin" OUT="$work/out$n" TUTTI_GPU_BUILD="$work/gpu" \
      TUTTI_GPU_ARCHIVE="$archive" "$root/tests/gpu/first_light.sh" call $n >"$work/call$n.log" 2>&1 || status=$?
    sed 's/^/  | /' "$work/call$n.log"
    echo "call $n: status $status, $((SECONDS - began)) s since the start, limit $((minutes[n] * 60)) s, $(find "$work/out$n" -type f 2>/dev/null | wc -l) files"
    ((status == 0)) || all=1
  done
  echo "rehearsed in $((SECONDS - began)) s; the calls have at most $((minutes[1] + minutes[2] + minutes[3] + minutes[4])) minutes of GPU time"
  return $all
}

case ${1:-} in
  -h | --help) usage ;;
  pack) pack "${@:2}" ;;
  call) call "${@:2}" ;;
  --rehearse) rehearse "${2:-}" ;;
  machine) machine ;;
  compare) mkdir -p "$out" && compare ;;
  *) usage >&2 && exit 2 ;;
esac
