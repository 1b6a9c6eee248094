#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs all work that needs a GPU: builds the CUDA parts, runs their tests, and compares their speed with PyTorch's.
usage() {
  cat <<'EOF'
usage: tests/gpu/run.sh [--list] [--only STEP,STEP] [--data FOLDER] [--minutes 8] HEADERS_DIR
       tests/gpu/run.sh --prebuilt [other options]
       tests/gpu/run.sh --portable --only configure,build HEADERS_DIR

  HEADERS_DIR   folder with doctest/doctest.h, CLI/CLI.hpp, Eigen/Core (or eigen3/Eigen/Core), stb/stb_image.h (decodes
                JPEGs) and Google Benchmark's source in benchmark/; what is missing leaves out what needs it
  --prebuilt    runs the programs that are in $TUTTI_GPU_BUILD/tree, and builds none
  --portable    builds programs for other machines: without instructions that only this machine's processor has, and with
                the C++ library linked in
  --list        prints the steps, and which of them would be skipped here and why; runs nothing
  --only        only these steps
  --data        folder of the CIFAR-10 files for the run on real data: the binary version, or train.rec and val.rec
                (cifar10_train.rec, cifar10_val.rec) with JPEGs, which take a third of the room (docs/reference/gpu.md),
                also as .rec.xz;
                without it the images are synthetic
  --minutes     everything ends within so many minutes

Needs g++, CMake, the CUDA toolkit with cuDNN and NCCL (or pip's nvidia-* packages), and PyTorch for the comparison. No
network, no MPI, no oneDNN. Writes four files to $OUT (default: build/gpu/out): lines.txt, to which each result is added as
soon as it is known; table.txt; device.json, the description of the GPU; and logs.tar.gz. Builds in $TUTTI_GPU_BUILD (default: build/gpu). Steps come in the order of their worth,
since the time may end first. A step that fails is named, and the others go on; the table is the last thing printed.
Exit status: 0, or 1 where a step failed.
EOF
}

set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${TUTTI_GPU_BUILD:-$root/build/gpu}
out=${OUT:-$build/out}
logs=$build/logs
list=false only="" data="" minutes=8 headers="" prebuilt=false portable=false
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --list) list=true ;;
    --prebuilt) prebuilt=true ;;
    --portable) portable=true ;;
    --only | --data | --minutes)
      [[ $# -gt 1 ]] || { echo "run.sh: a value is missing after $1" >&2; exit 2; }
      case $1 in
        --only) only=$2 ;;
        --data) data=$2 ;;
        --minutes) minutes=$2 ;;
      esac
      shift ;;
    -*) echo "run.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
    *) headers=$1 ;;
  esac
  shift
done
[[ $minutes =~ ^[0-9]+$ && $minutes -gt 0 ]] || { echo "run.sh: --minutes wants a number, got '$minutes'" >&2; exit 2; }
if [[ -z $headers ]] && ! $list && ! $prebuilt; then
  echo "run.sh: HEADERS_DIR is missing" >&2
  usage >&2
  exit 2
fi
[[ -z $headers || -d $headers ]] || { echo "run.sh: no folder $headers" >&2; exit 2; }
[[ -z $headers ]] || headers=$(cd "$headers" && pwd)
[[ -z $data || -d $data ]] || { echo "run.sh: no folder $data" >&2; exit 2; }
[[ -z $data ]] || data=$(cd "$data" && pwd)

# name | maximum seconds | what the step needs | what the step does
steps=(
  "configure|60|compiler|CMake finds the toolkit, cuDNN, NCCL and the headers"
  "build|200|compiler|the programs and tests of the CUDA parts, with g++"
  "describe|20|gpu|the GPU's description for cuDNN, as tests/backends/devices keeps such"
  "conformance|90|gpu doctest|every op in every precision beside the reference backend"
  "step|170|gpu|images a second of whole training steps"
  "torch|240|gpu torch|the same steps of PyTorch: eager, then compiled; each result is kept at once"
  "fusion|150|gpu|batch norm within convolutions or not, plans timed"
  "cifar10|75|gpu cli|the fast CIFAR-10 recipe, twice, and the same in PyTorch; without --data a short synthetic run"
  "first-step|30|gpu cli|a process with stored plans, from its start to the first trained step"
  "libraries|60|gpu doctest|cuDNN's and cuBLAS's plans and fusions beside plain loops; plans stored and taken again"
  "bandwidth|30|gpu ncu|memory's speed within batch norm's kernels (Nsight Compute), over steps without a graph"
  "allreduce|40|gpu nccl|NCCL in the step: what it costs, with a rank for each GPU"
  "convolutions|30|gpu benchmark|single convolutions and batch norms (Google Benchmark)"
  "nccl|60|gpu nccl doctest|the cases of every communicator, with one rank and with a rank for each GPU; one of each generation of an elastic job"
  "golden|60|gpu doctest|nets whose activations, gradients and losses PyTorch computed"
  "sanitizer|60|gpu sanitizer cli|compute-sanitizer on one step of a small net: memory, then races"
)

# --- Detection of programs and libraries.
have() { command -v "$1" >/dev/null 2>&1; }
python=$(command -v python3 || true)
gpus() { nvidia-smi -L 2>/dev/null | grep -c "^GPU "; }
has_gpu() { have nvidia-smi && nvidia-smi -L 2>/dev/null | grep "^GPU " >/dev/null; }
has_torch() { [[ -n $python ]] && "$python" -c 'import torch, torchvision' >/dev/null 2>&1; }
source "$root/tests/gpu/toolkit.sh"
find_pip_folders "$python"
# lack REQUIREMENT: prints why a requirement of a step is missing, or an empty text if it is not.
lack() {
  case $1 in
    compiler) have g++ && have cmake || echo "no g++ or no cmake" ;;
    gpu) has_gpu || echo "no GPU (nvidia-smi lists none)" ;;
    torch) has_torch || echo "python3 has no torch with torchvision" ;;
    doctest) [[ -z $headers || -f $headers/doctest/doctest.h ]] || echo "no $headers/doctest/doctest.h" ;;
    benchmark) [[ -z $headers || -f $headers/benchmark/CMakeLists.txt ]] || echo "no $headers/benchmark/CMakeLists.txt" ;;
    cli) [[ -z $headers || -f $headers/CLI/CLI.hpp ]] || echo "no $headers/CLI/CLI.hpp" ;;
    nccl) $prebuilt || header_folder nccl.h >/dev/null || echo "no nccl.h" ;;
    ncu) tool ncu >/dev/null || echo "no ncu (Nsight Compute)" ;;
    sanitizer) tool compute-sanitizer >/dev/null || echo "no compute-sanitizer" ;;
  esac
}
field() { cut -d'|' -f"$2" <<<"$1"; }
why_not() {
  local need reason
  for need in $(field "$1" 3); do
    reason=$(lack "$need")
    [[ -z $reason ]] || { echo "$reason"; return; }
  done
}

if $list; then
  for s in "${steps[@]}"; do
    reason=$(why_not "$s")
    printf '%-12s %s%s\n' "$(field "$s" 1)" "$(field "$s" 4)" "${reason:+  [skipped here: $reason]}"
  done
  exit 0
fi

# --- Running steps.
start=$SECONDS
end=$((start + minutes * 60 - 10)) # leaves time for the table
mkdir -p "$out" "$build"
rm -rf "$logs" "$out/lines.txt" && mkdir -p "$logs"
log() { echo "$logs/$1.log"; }
rows=() results=() failures=0
# Each result is a line of a file at once: if the machine goes away, the results so far remain.
line() { echo "$((SECONDS - start)) s: $*" >>"$out/lines.txt"; }
row() { # name, result, result of PyTorch, target
  rows+=("$1|$2|$3|$4")
  line "$1: $2${3:+, PyTorch: $3}"
}
left() { echo $((end - SECONDS)); }

report() {
  trap - EXIT
  {
    echo
    echo "steps"
    printf '  %-12s %-8s %5s  %s\n' step result s ""
    for r in "${results[@]}"; do
      IFS='|' read -r name result seconds note <<<"$r"
      printf '  %-12s %-8s %5s  %s\n' "$name" "$result" "$seconds" "$note"
    done
    echo
    echo "measured$(has_gpu && echo " on $(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader | head -n 1 |
      sed 's/, */, compute capability /'), $(gpus) of them")"
    printf '  %-44s %18s %32s  %s\n' what tutti PyTorch target
    [[ ${#rows[@]} -gt 0 ]] || echo "  nothing"
    for r in ${rows[@]+"${rows[@]}"}; do
      IFS='|' read -r what ours theirs target <<<"$r"
      printf '  %-44s %18s %32s  %s\n' "$what" "$ours" "$theirs" "$target"
    done
    echo
    (($(gpus) > 1)) || echo "one GPU, one rank: NCCL's kernels, links and aborts were not tested; that takes two GPUs"
    echo "$failures steps failed, $((SECONDS - start)) s; logs in $out/logs.tar.gz"
  } | tee "$out/table.txt"
  tar -czf "$out/logs.tar.gz" -C "$build" logs
  exit $((failures > 0))
}
trap report EXIT
trap 'exit 130' INT TERM

run_step() {
  local s=$1 name limit reason begin=$SECONDS status note
  name=$(field "$s" 1) limit=$(field "$s" 2)
  if [[ -n $only && ",$only," != *",$name,"* ]]; then return; fi
  reason=$(why_not "$s")
  if [[ -n $reason ]]; then
    results+=("$name|skipped|0|$reason")
    return
  fi
  # Only on a lent machine is the time of a build limited.
  if $portable; then limit=0; fi
  ((limit > 0 && limit <= $(left))) || limit=$(left)
  if ((limit < 5)); then
    failures=$((failures + 1))
    results+=("$name|FAILED|0|no time is left")
    return
  fi
  echo "== $name: $(field "$s" 4)"
  note_file=$build/$name.note
  : >"$note_file"
  step_end=$((begin + limit))
  ((step_end <= end)) || step_end=$end
  "step_${name//-/_}" >"$(log "$name")" 2>&1
  status=$?
  line "step $name ended with $status after $((SECONDS - begin)) s: $(tr '\n|' ' /' <"$note_file")"
  note=$(head -c 300 "$note_file" | tr '\n|' ' /')
  rm -f "$note_file"
  case $status in
    0) results+=("$name|ok|$((SECONDS - begin))|$note") ;;
    77) results+=("$name|skipped|$((SECONDS - begin))|$note") ;;
    *)
      failures=$((failures + 1))
      [[ $status != 124 && $status != 137 ]] || note="not done after $limit s. $note"
      results+=("$name|FAILED|$((SECONDS - begin))|status $status. $note")
      echo "   FAILED (status $status): $note"
      grep -aiE 'error|fail|expected' "$(log "$name")" | tail -n 8 | sed 's/^/   | /' ;;
  esac
}
note() { echo "$*" >>"$note_file"; }
# Prints the number of seconds until this step must end.
step_left() { echo $((step_end - SECONDS)); }
# limited PROGRAM...: runs a program for at most the rest of the step's time. at_most SECONDS PROGRAM...: the same with
# a shorter limit.
limited() { at_most "$(step_left)" "$@"; }
at_most() {
  local seconds=$1
  ((seconds <= $(step_left))) || seconds=$(step_left)
  ((seconds > 0)) || return 124
  timeout --kill-after=5 "$seconds" "${@:2}"
}
# --- The steps.
step_configure() {
  # Makes packages for CMake from plain folders. CMake may read a package more than once.
  local packages=$build/packages lib part folder arguments=()
  rm -rf "$packages" && mkdir -p "$packages"
  if [[ -f $headers/doctest/doctest.h ]]; then
    cat >"$packages/doctestConfig.cmake" <<EOF
if(TARGET doctest::doctest)
  return()
endif()
add_library(doctest::doctest INTERFACE IMPORTED)
set_target_properties(doctest::doctest PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "$headers")
EOF
  fi
  if [[ -f $headers/CLI/CLI.hpp ]]; then
    cat >"$packages/CLI11Config.cmake" <<EOF
if(TARGET CLI11::CLI11)
  return()
endif()
add_library(CLI11::CLI11 INTERFACE IMPORTED)
set_target_properties(CLI11::CLI11 PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "$headers")
EOF
  fi
  for folder in "$headers" "$headers/eigen3"; do
    [[ -f $folder/Eigen/Core ]] || continue
    cat >"$packages/Eigen3Config.cmake" <<EOF
if(TARGET Eigen3::Eigen)
  return()
endif()
add_library(Eigen3::Eigen INTERFACE IMPORTED)
set_target_properties(Eigen3::Eigen PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "$folder")
EOF
    cat >"$packages/Eigen3ConfigVersion.cmake" <<'EOF'
set(PACKAGE_VERSION 3.4.0)
set(PACKAGE_VERSION_COMPATIBLE TRUE)
EOF
  done
  if [[ -f $headers/benchmark/CMakeLists.txt ]]; then
    if cmake -S "$headers/benchmark" -B "$build/benchmark" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=g++ \
      -DCMAKE_INSTALL_PREFIX="$build/prefix" -DBENCHMARK_ENABLE_TESTING=OFF -DBENCHMARK_ENABLE_INSTALL=ON &&
      cmake --build "$build/benchmark" --parallel "$(nproc)" --target install; then
      arguments+=("-Dbenchmark_ROOT=$build/prefix")
    else
      note "Google Benchmark was not built."
    fi
  fi
  # stb decodes JPEGs, which are the smallest form of CIFAR-10.
  [[ -f $headers/stb/stb_image.h ]] && arguments+=("-Dstb_INCLUDE_DIR=$headers")
  local cuda
  mapfile -t cuda < <(cuda_arguments)
  [[ ${#cuda[@]} -gt 0 ]] || note "no CUDA headers and runtime in: $(cuda_roots | tr '\n' ' ')"
  arguments+=(${cuda[@]+"${cuda[@]}"})
  have ninja && arguments+=(-G Ninja)
  $portable && arguments+=(-DTUTTI_EIGEN_NATIVE=OFF "-DCMAKE_EXE_LINKER_FLAGS=-static-libstdc++ -static-libgcc")
  # Without the packages that would make programs depend on libraries of the machine that builds them.
  local package
  for package in oneDNN MPIC libgloo libzmq libjpegTurbo; do arguments+=("-DCMAKE_DISABLE_FIND_PACKAGE_$package=ON"); done
  limited cmake -S "$root" -B "$build/tree" "${arguments[@]}" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=g++ \
    -DCMAKE_PREFIX_PATH="$packages" -DCMAKE_FIND_PACKAGE_NO_PACKAGE_REGISTRY=ON -DTUTTI_BUILD_TESTS=ON \
    -DTUTTI_BUILD_EXAMPLES=ON -DTUTTI_BUILD_BENCH=ON -DTUTTI_INSTALL=OFF || return
  grep -qE "component cuda: " "$(log configure)" || { note "no component cuda: the toolkit or cuDNN was not found" && return 1; }
  grep -E "component (cuda|nccl|eigen|stb):" "$(log configure)" | sed 's/.*component //' | while read -r lib; do note "$lib."; done
}

step_build() {
  local targets=() known t keep=() single=(bench_step bench_convolution bench_batch_norm)
  known=$(cmake --build "$build/tree" --target help 2>/dev/null)
  if $portable; then single=(); fi # first_light.sh does not run these
  for t in $(cuda_tests | while read -r f; do target_of "$f"; done) tests_backends_describe_device bench_tutti_step \
    bench_allreduce train_cifar10 tutti-launch ${single[@]+"${single[@]}"}; do
    grep -qE "(^|[ .])$t(:|\$| )" <<<"$known" && targets+=("$t")
  done
  [[ ${#targets[@]} -gt 0 ]] || { note "CMake knows no CUDA targets" && return 1; }
  if have ninja; then keep=(-- -k 0); else keep=(-- -k); fi
  limited cmake --build "$build/tree" --parallel "$(nproc)" --target "${targets[@]}" "${keep[@]}"
  local status=$?
  note "$(grep -c . < <(printf '%s\n' "${targets[@]}")) targets."
  return $status
}

source "$root/tests/gpu/checks.sh"
source "$root/tests/gpu/measures.sh"

# If CUDA's libraries are in packages of pip, programs need the paths of these packages.
for folder in ${pip_folders[@]+"${pip_folders[@]}"}; do
  [[ -d $folder/lib ]] && export LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
done
# Programs find the other libraries of a toolkit that only nvcc's place names.
if [[ -z ${CUDA_HOME:-} ]] && have nvcc; then
  CUDA_HOME=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
  export CUDA_HOME
fi
# This run has a new cache of plans and kernels, so that it measures a first start.
export XDG_CACHE_HOME=$build/cache
rm -rf "$XDG_CACHE_HOME"
mkdir -p "$XDG_CACHE_HOME"
if $prebuilt; then steps=("${steps[@]:2}"); fi
for s in "${steps[@]}"; do run_step "$s"; done
