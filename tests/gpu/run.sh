#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Everything that needs a GPU, in one go: builds the CUDA parts, runs their tests, and measures them beside PyTorch.
usage() {
  cat <<'EOF'
usage: tests/gpu/run.sh [--list] [--only STEP,STEP] [--data FOLDER] [--minutes 8] HEADERS_DIR

  HEADERS_DIR   folder with doctest/doctest.h, CLI/CLI.hpp, Eigen/Core (or eigen3/Eigen/Core) and Google Benchmark's
                source in benchmark/; what is missing leaves out what needs it
  --list        prints the steps, and which of them would be skipped here and why; runs nothing
  --only        only these steps
  --data        folder of the CIFAR-10 files for the run on real data: the binary version, or train.rec and val.rec
                (cifar10_train.rec, cifar10_val.rec) with JPEGs, which take a third of the room (docs/gpu.md);
                without it the images are synthetic
  --minutes     everything ends within so many minutes

Needs g++, CMake, the CUDA toolkit with cuDNN and NCCL (or pip's nvidia-* packages), and PyTorch for the comparison. No
network, no MPI, no oneDNN. Writes three files to $OUT (default: build/gpu/out): table.txt, device.json, the description
of the GPU, and logs.tar.gz. Builds in $TUTTI_GPU_BUILD (default: build/gpu). Steps come in the order of their worth,
since the time may end first. A step that fails is named, and the others go on; the table is the last thing printed.
Exit status: 0, or 1 where a step failed.
EOF
}

set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${TUTTI_GPU_BUILD:-$root/build/gpu}
out=${OUT:-$build/out}
logs=$build/logs
list=false only="" data="" minutes=8 headers=""
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --list) list=true ;;
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
if [[ -z $headers ]] && ! $list; then
  echo "run.sh: HEADERS_DIR is missing" >&2
  usage >&2
  exit 2
fi
[[ -z $headers || -d $headers ]] || { echo "run.sh: no folder $headers" >&2; exit 2; }
[[ -z $headers ]] || headers=$(cd "$headers" && pwd)
[[ -z $data || -d $data ]] || { echo "run.sh: no folder $data" >&2; exit 2; }
[[ -z $data ]] || data=$(cd "$data" && pwd)

# name | seconds at most | what must be there | what it does
steps=(
  "configure|60|compiler|CMake finds the toolkit, cuDNN, NCCL and the headers"
  "torch|0|gpu torch|PyTorch compiles its nets in the background, and measures when it is their turn"
  "build|200|compiler|the programs and tests of the CUDA parts, with g++"
  "describe|20|gpu|the GPU's description for cuDNN, as tests/backends/devices keeps such"
  "conformance|90|gpu doctest|every op in every precision beside Reference"
  "step|170|gpu|images a second of whole training steps, by turns with PyTorch"
  "fusion|150|gpu|batch norm within convolutions or not, plans timed"
  "cifar10|75|gpu cli|the fast CIFAR-10 recipe, twice, and the same in PyTorch; without --data a short synthetic run"
  "first-step|30|gpu cli|a process with stored plans, from its start to the first trained step"
  "libraries|60|gpu doctest|cuDNN's and cuBLAS's plans and fusions beside plain loops; plans stored and taken again"
  "bandwidth|30|gpu ncu|memory's speed within batch norm's kernels (Nsight Compute), over steps without a graph"
  "allreduce|40|gpu nccl|NCCL in the step: what it costs, with a rank for each GPU"
  "convolutions|30|gpu benchmark|single convolutions and batch norms (Google Benchmark)"
  "nccl|60|gpu nccl doctest|the cases of every communicator, with one rank and with a rank for each GPU"
  "golden|60|gpu doctest|nets whose activations, gradients and losses PyTorch computed"
  "sanitizer|60|gpu sanitizer cli|compute-sanitizer on one step of a small net: memory, then races"
)

# --- What is here.
have() { command -v "$1" >/dev/null 2>&1; }
python=$(command -v python3 || true)
gpus() { nvidia-smi -L 2>/dev/null | grep -c "^GPU "; }
has_gpu() { have nvidia-smi && nvidia-smi -L 2>/dev/null | grep -q "^GPU "; }
has_torch() { [[ -n $python ]] && "$python" -c 'import torch, torchvision' >/dev/null 2>&1; }
# The folder with a header of CUDA's libraries: the toolkit's, or that of one of pip's packages.
pip_folders=()
if [[ -n $python ]]; then
  mapfile -t pip_folders < <("$python" - <<'EOF' 2>/dev/null
import glob, os, sys
for p in sys.path:
    for d in sorted(glob.glob(os.path.join(p, "nvidia", "*"))):
        if os.path.isdir(d):
            print(d)
EOF
  )
fi
header_folder() {
  local d
  for d in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda "${pip_folders[@]}" /usr; do
    [[ -n $d && -f $d/include/$1 ]] && { echo "$d/include"; return 0; }
  done
  return 1
}
# Why something that a step needs is not there; nothing where it is.
lack() {
  case $1 in
    compiler) have g++ && have cmake || echo "no g++ or no cmake" ;;
    gpu) has_gpu || echo "no GPU (nvidia-smi lists none)" ;;
    torch) has_torch || echo "python3 has no torch with torchvision" ;;
    doctest) [[ -z $headers || -f $headers/doctest/doctest.h ]] || echo "no $headers/doctest/doctest.h" ;;
    benchmark) [[ -z $headers || -f $headers/benchmark/CMakeLists.txt ]] || echo "no $headers/benchmark/CMakeLists.txt" ;;
    cli) [[ -z $headers || -f $headers/CLI/CLI.hpp ]] || echo "no $headers/CLI/CLI.hpp" ;;
    nccl) header_folder nccl.h >/dev/null || echo "no nccl.h" ;;
    ncu) have ncu || [[ -x /usr/local/cuda/bin/ncu ]] || echo "no ncu (Nsight Compute)" ;;
    sanitizer) have compute-sanitizer || [[ -x /usr/local/cuda/bin/compute-sanitizer ]] || echo "no compute-sanitizer" ;;
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
end=$((start + minutes * 60 - 10)) # the table comes after
mkdir -p "$out" "$build"
rm -rf "$logs" && mkdir -p "$logs"
log() { echo "$logs/$1.log"; }
rows=() results=() failures=0
row() { rows+=("$1|$2|$3|$4"); } # what, ours, theirs, target
left() { echo $((end - SECONDS)); }

report() {
  trap - EXIT
  [[ -z ${torch_pid:-} ]] || end_torch
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
  ((limit > 0 && limit <= $(left))) || limit=$(left)
  if ((limit < 5)); then
    results+=("$name|skipped|0|no time is left")
    return
  fi
  echo "== $name: $(field "$s" 4)"
  note_file=$build/$name.note
  : >"$note_file"
  step_end=$((begin + limit))
  ((step_end <= end)) || step_end=$end
  "step_${name//-/_}" >"$(log "$name")" 2>&1
  status=$?
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
# Seconds until this step must be over.
step_left() { echo $((step_end - SECONDS)); }
# Runs a program for as long as its step has time, or for so many seconds less: at_most SECONDS PROGRAM...
limited() { at_most "$(step_left)" "$@"; }
at_most() {
  local seconds=$1
  ((seconds <= $(step_left))) || seconds=$(step_left)
  ((seconds > 0)) || return 124
  timeout --kill-after=5 "$seconds" "${@:2}"
}
# PyTorch compiles with all cores and tries its kernels on the GPU: before anything is timed that is over.
torch_waits=60
quiet() {
  [[ -n ${torch_pid:-} ]] || return 0
  local until=$((SECONDS + torch_waits))
  while kill -0 "$torch_pid" 2>/dev/null && [[ ! -e $logs/torch.ready ]] && ((SECONDS < until && $(step_left) > 5)); do sleep 0.5; done
  [[ ! -e $logs/torch.ready ]] && kill -0 "$torch_pid" 2>/dev/null || return 0
  note "PyTorch was still compiling, and was ended."
  end_torch
}
end_torch() {
  # It and what compiles for it are a group of processes.
  kill -- "-$torch_pid" 2>/dev/null || kill "$torch_pid" 2>/dev/null
  torch_pid=
}

# --- The steps.
step_configure() {
  # Packages for CMake out of plain folders.
  local packages=$build/packages lib part folder arguments=()
  rm -rf "$packages" && mkdir -p "$packages"
  if [[ -f $headers/doctest/doctest.h ]]; then
    cat >"$packages/doctestConfig.cmake" <<EOF
add_library(doctest::doctest INTERFACE IMPORTED)
set_target_properties(doctest::doctest PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "$headers")
EOF
  fi
  if [[ -f $headers/CLI/CLI.hpp ]]; then
    cat >"$packages/CLI11Config.cmake" <<EOF
add_library(CLI11::CLI11 INTERFACE IMPORTED)
set_target_properties(CLI11::CLI11 PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "$headers")
EOF
  fi
  for folder in "$headers" "$headers/eigen3"; do
    [[ -f $folder/Eigen/Core ]] || continue
    cat >"$packages/Eigen3Config.cmake" <<EOF
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
  for part in nvrtc cublasLt cudnn; do
    folder=$(header_folder $part.h) && arguments+=("-DCUDAdnn_${part}_INCLUDE_DIR=$folder")
  done
  folder=$(header_folder nccl.h) && arguments+=("-DNCCL_INCLUDE_DIR=$folder")
  have ninja && arguments+=(-G Ninja)
  limited cmake -S "$root" -B "$build/tree" "${arguments[@]}" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=g++ \
    -DCMAKE_PREFIX_PATH="$packages" -DCMAKE_FIND_PACKAGE_NO_PACKAGE_REGISTRY=ON -DTUTTI_BUILD_TESTS=ON \
    -DTUTTI_BUILD_EXAMPLES=ON -DTUTTI_BUILD_BENCH=ON -DTUTTI_INSTALL=OFF -DCMAKE_DISABLE_FIND_PACKAGE_oneDNN=ON \
    -DCMAKE_DISABLE_FIND_PACKAGE_MPIC=ON || return
  grep -qE "component cuda: " "$(log configure)" || { note "no component cuda: the toolkit or cuDNN was not found" && return 1; }
  grep -E "component (cuda|nccl|eigen):" "$(log configure)" | sed 's/.*component //' | while read -r lib; do note "$lib."; done
}

# The test programs that call the CUDA backend or NCCL. Those that play a GPU or its driver are no matter of a GPU.
cuda_tests() {
  (cd "$root/tests" && grep -lE 'tutti/backends/(cuda|nccl)/|TUTTI_HAS_CUDA|built_backends.hpp' ./*/test_*.cpp | sed 's|^\./||' |
    while read -r f; do grep -qE 'cuda_emulator|TUTTI_STAND_IN' "$f" || echo "$f"; done)
}
target_of() { echo "tests_$(dirname "$1")_$(basename "$1" .cpp)"; }
program_of() { echo "$build/tree/tests/$(dirname "$1")/$(basename "$1" .cpp)"; }

step_build() {
  local targets=() known t keep=()
  known=$(cmake --build "$build/tree" --target help 2>/dev/null)
  for t in $(cuda_tests | while read -r f; do target_of "$f"; done) tests_backends_describe_device bench_tutti_step bench_step \
    bench_allreduce bench_convolution bench_batch_norm train_cifar10 tutti-launch; do
    grep -qE "(^|[ .])$t(:|\$| )" <<<"$known" && targets+=("$t")
  done
  [[ ${#targets[@]} -gt 0 ]] || { note "CMake knows no CUDA targets" && return 1; }
  if have ninja; then keep=(-- -k 0); else keep=(-- -k); fi
  limited cmake --build "$build/tree" --parallel "$(nproc)" --target "${targets[@]}" "${keep[@]}"
  local status=$?
  note "$(grep -c . < <(printf '%s\n' "${targets[@]}")) targets."
  return $status
}

step_describe() {
  local program=$build/tree/tests/backends/describe_device file=$out/device.json
  [[ -x $program ]] || { note "describe_device was not built" && return 1; }
  limited "$program" >"$build/device.json" && [[ -s $build/device.json ]] && mv "$build/device.json" "$file" || return 1
  note "$file: compare with tests/backends/devices; where they differ, replace that file and run test_cudnn_plans"
}

# Runs test programs, or $test_cases of them, and adds their cases up. doctest says "test cases: 9 | 8 passed | 1 failed".
run_tests() {
  local program passed=0 failed=0 skipped=0 status=0 text any=false code
  for program in "$@"; do
    if [[ ! -x $program ]]; then
      note "$(basename "$program") was not built."
      status=1
      continue
    fi
    any=true
    text=$(cd "$root" && limited "$program" --no-colors ${test_cases:+--test-case="$test_cases"} 2>&1)
    code=$?
    echo "$text"
    ((code == 0)) || status=$code
    passed=$((passed + $(sed -nE 's/.*test cases: .*\| +([0-9]+) passed.*/\1/p' <<<"$text" | tail -n 1 | grep . || echo 0)))
    failed=$((failed + $(sed -nE 's/.*test cases: .*\| +([0-9]+) failed.*/\1/p' <<<"$text" | tail -n 1 | grep . || echo 0)))
    skipped=$((skipped + $(grep -c '^SKIP: ' <<<"$text")))
  done
  $any || return 1
  note "$passed cases passed, $failed failed, $skipped of these skipped."
  return $status
}
programs_matching() { cuda_tests | grep -E "$1" | while read -r f; do program_of "$f"; done; }

step_libraries() {
  local list
  mapfile -t list < <(programs_matching '^backends/test_(cuda_libraries|cudnn|cublas|plan_store)\.cpp$')
  run_tests "${list[@]}"
}
step_conformance() {
  local list
  mapfile -t list < <(programs_matching '^(backend|backends|train|graph)/' | grep -vE '/test_(cuda_libraries|cudnn|cublas|plan_store)$')
  [[ ${#list[@]} -gt 0 ]] || { note "no test program of the cuda backend" && return 1; }
  run_tests "${list[@]}"
}
step_golden() {
  local list
  mapfile -t list < <(programs_matching '^golden/')
  [[ ${#list[@]} -gt 0 ]] || { note "no golden test names the cuda backend" && return 77; }
  # Those of the processor's backends take minutes.
  local test_cases="gpu: *"
  run_tests "${list[@]}"
}
step_nccl() {
  local list
  mapfile -t list < <(programs_matching '^dist/')
  (($(gpus) > 1)) || note "with one rank NCCL starts no kernel."
  run_tests "${list[@]}"
}

step_sanitizer() {
  local tool sanitizer status=0 code half=$(($(step_left) / 2 - 3))
  local program=$build/tree/examples/train_cifar10
  sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  [[ -x $program ]] || { note "train_cifar10 was not built" && return 1; }
  # Plans and kernels are stored first: their making takes most of a process, and the sanitizer slows it down.
  local run=("$program" --backend cuda --precision bf16 --benchmark --max-steps 1 --batch-size 8 --run-dir "$build/sanitizer-run")
  limited "${run[@]}" || return
  for tool in memcheck racecheck; do
    echo "--- $tool"
    rm -rf "$build/sanitizer-run"
    at_most "$half" "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 20 "${run[@]}"
    code=$?
    case $code in
      0) note "$tool: no error." ;;
      124 | 130 | 137) note "$tool: not through in $half s." ;;
      *) note "$tool: status $code." && status=1 ;;
    esac
  done
  rm -rf "$build/sanitizer-run"
  ! grep -qE '^=+ (Invalid|Error: Race|Uninitialized)' "$(log sanitizer)" || status=1
  return $status
}

step_cifar10() {
  local program=$build/tree/examples/train_cifar10 turn begin seconds first accuracy peer
  [[ -x $program ]] || { note "train_cifar10 was not built" && return 1; }
  quiet
  if [[ -z $data ]]; then
    note "synthetic images (no --data)."
    limited "$program" --backend cuda --precision bf16 --benchmark --epochs 1 --batch-size 512 --run-dir "$build/cifar10-run"
    local status=$?
    rm -rf "$build/cifar10-run"
    return $status
  fi
  local images=(--data "$data") form="the original files" prefix
  for prefix in cifar10_ ""; do
    [[ -f $data/${prefix}train.rec ]] || continue
    images=(--data-train "$data/${prefix}train.rec" --data-val "$data/${prefix}val.rec")
    form="JPEGs"
    break
  done
  # The first process compiles kernels and stores plans, the second one finds them.
  for turn in 1 2; do
    begin=$(date +%s.%N)
    limited "$program" --backend cuda --recipe fast "${images[@]}" --seed "$turn" --run-dir "$build/cifar10-run" \
      >"$logs/cifar10-$turn.log" || return
    seconds=$(awk "BEGIN { printf \"%.2f\", $(date +%s.%N) - $begin }")
    rm -rf "$build/cifar10-run"
    cat "$logs/cifar10-$turn.log"
    accuracy=$(sed -nE 's/^test.*views.*top-1 ([0-9.]+) %.*/\1/p' "$logs/cifar10-$turn.log" | tail -n 1)
    [[ -n $accuracy ]] || { note "no accuracy printed" && return 1; }
    [[ $turn == 1 ]] && first=$seconds
    note "process $turn: $seconds s, $accuracy %."
  done
  peer=-
  if [[ $form == JPEGs ]]; then
    note "PyTorch's run reads the original files alone."
  elif has_torch; then
    if limited "$python" "$root/tests/gpu/torch_cifar_recipe.py" --data "$data" --seed 2 >"$logs/cifar10-torch.jsonl"; then
      cat "$logs/cifar10-torch.jsonl"
      peer=$("$python" -c 'import json, sys
d = json.loads(sys.stdin.read().splitlines()[-1])
print("{:.2f} s, {:.2f} %".format(d["seconds"], 100 * d["accuracy_of_views"]))' <"$logs/cifar10-torch.jsonl")
    else
      note "PyTorch's run failed or was not done in time."
    fi
  fi
  row "CIFAR-10 from $form, start to accuracy" "$seconds s, $accuracy %" "$peer" "94 % in 4 s on the original files"
  row "  the first process, nothing stored" "$first s" "" ""
}

step_first_step() {
  local program=$build/tree/examples/train_cifar10 begin seconds turn
  [[ -x $program ]] || { note "train_cifar10 was not built" && return 1; }
  quiet
  # The first process compiles kernels and stores plans, the second one finds them.
  for turn in 1 2; do
    begin=$(date +%s.%N)
    limited "$program" --backend cuda --precision bf16 --benchmark --max-steps 1 --batch-size 128 --run-dir "$build/first-step" || return
    seconds=$(awk "BEGIN { printf \"%.2f\", $(date +%s.%N) - $begin }")
    rm -rf "$build/first-step"
    note "process $turn: $seconds s."
  done
  row "a process of one step, plans stored" "$seconds s" "-" "2 s"
}

# PyTorch gets ready while the C++ compiler works, and measures when its turn comes.
step_torch() {
  rm -f "$logs"/torch.go "$logs"/torch.ready "$logs"/torch.jsonl
  setsid nice -n 15 "$python" "$root/tests/gpu/torch_step.py" --ready "$logs/torch.ready" --go "$logs/torch.go" --until "$(($(date +%s) + $(left) - 5))" \
    >"$logs/torch.jsonl" 2>"$logs/torch-errors.log" &
  torch_pid=$!
  note "started; see the step \"step\""
}

# number FILE FIELD=VALUE...: images_per_second of the line that has all of these.
number() {
  "$python" - "$@" <<'EOF'
import json, sys
want = dict(a.split("=", 1) for a in sys.argv[2:])
for line in open(sys.argv[1]):
    try:
        d = json.loads(line)
    except ValueError:
        continue
    if all(str(d.get(k)) == v for k, v in want.items()):
        print(f"{d['images_per_second']:.0f}")
        break
EOF
}
ratio() { [[ -n $1 && -n $2 ]] && awk "BEGIN { printf \"%.2fx\", $1 / $2 }" || echo "?"; }

step_step() {
  local program=$build/tree/bench/tutti_step ours=$logs/tutti_step.jsonl tuned=$logs/tutti_step_tuned.jsonl status=0
  local model batch precision mine eager compiled graphs line
  [[ -x $program ]] || { note "tutti_step was not built" && return 1; }
  : >"$ours"
  : >"$tuned"
  quiet
  # model, batch, precision, what, target
  local nets=(
    "resnet50|256|bf16|ResNet-50 224x224, bf16, batch 256|1.5x eager, above compile; 6,000 images/s, aim at 7,500"
    "resnet50|512|bf16|ResNet-50 224x224, bf16, batch 512|1.5x eager, above compile"
    "resnet50|256|f16|ResNet-50 224x224, f16, batch 256|"
    "resnet50-32|128|bf16|ResNet-50 32x32, bf16, batch 128|1.6x compile"
  )
  for n in "${nets[@]}"; do
    model=$(field "$n" 1) batch=$(field "$n" 2) precision=$(field "$n" 3)
    if ! line=$(limited "$program" --backend cuda --model "$model" --batch "$batch" --precision "$precision" --seconds 4); then
      status=1
      note "$model at $batch in $precision failed."
    fi
    echo "$line" | tee -a "$ours"
    # Plans that were timed are stored, so what comes later has them too.
    if line=$(at_most 30 "$program" --backend cuda --model "$model" --batch "$batch" --precision "$precision" \
      --seconds 2 --autotune --fusion off); then
      echo "$line" | tee -a "$tuned"
    else
      note "$model at $batch in $precision: no result with --autotune in 30 s."
    fi
  done
  if [[ -n ${torch_pid:-} ]]; then
    touch "$logs/torch.go"
    while kill -0 "$torch_pid" 2>/dev/null && (($(step_left) > 3)); do sleep 0.5; done
    kill -0 "$torch_pid" 2>/dev/null && note "PyTorch was not done in time." && end_torch
    cat "$logs/torch.jsonl"
    tail -n 5 "$logs/torch-errors.log"
    torch_pid=
  fi
  for n in "${nets[@]}"; do
    model=$(field "$n" 1) batch=$(field "$n" 2) precision=$(field "$n" 3)
    local which=(model="$model" batch="$batch" precision="$precision")
    mine=$(number "$ours" "${which[@]}")
    line=$(number "$tuned" "${which[@]}")
    eager="" compiled="" graphs=""
    if [[ -s $logs/torch.jsonl ]]; then
      eager=$(number "$logs/torch.jsonl" "${which[@]}" mode=eager)
      compiled=$(number "$logs/torch.jsonl" "${which[@]}" mode=compile)
      graphs=$(number "$logs/torch.jsonl" "${which[@]}" mode=reduce-overhead)
    fi
    row "$(field "$n" 4)" "${mine:-?} images/s" "eager ${eager:-?}, compile ${compiled:-?}" "$(field "$n" 5)"
    [[ -z $line ]] || row "  with --autotune --fusion off" "$line images/s" "" ""
    [[ -z $line || -z $mine ]] || mine=$((line > mine ? line : mine))
    row "  ratio" "" "$(ratio "$mine" "$eager") eager, $(ratio "$mine" "$compiled") compile" ""
    [[ -z $graphs ]] || row "  beside torch.compile with CUDA graphs" "" "$graphs, $(ratio "$mine" "$graphs")" ""
  done
  return $status
}

# What batch norm within convolutions is worth. cuDNN compiles kernels for it, a second each, when it is first asked.
step_fusion() {
  local program=$build/tree/bench/tutti_step precision fusion line mine list="" begin failed=0
  [[ -x $program ]] || { note "tutti_step was not built" && return 1; }
  quiet
  # auto takes the way back through batch norm where it is timed and faster; on takes it wherever cuDNN has it.
  for precision in f16 bf16; do
    list=""
    for fusion in off auto $([[ $precision != f16 ]] || echo on); do
      begin=$SECONDS
      line=$(limited "$program" --backend cuda --model resnet50 --batch 256 --precision "$precision" --seconds 2 --autotune \
        --fusion "$fusion") || { note "$precision $fusion: no result." && failed=1 && continue; }
      echo "$line" | tee "$logs/fusion.jsonl"
      mine=$(number "$logs/fusion.jsonl" model=resnet50)
      list+="$fusion $mine, "
      note "$precision $fusion: $((SECONDS - begin)) s."
    done
    row "ResNet-50, $precision, batch 256, --autotune --fusion" "" "${list%, }" ""
  done
  rm -f "$logs/fusion.jsonl"
  return $failed
}

# How much of the memory's speed batch norm's kernels reach: what holds them back is seen in no other number.
step_bandwidth() {
  local program=$build/tree/bench/tutti_step ncu
  ncu=$(command -v ncu || echo /usr/local/cuda/bin/ncu)
  [[ -x $program ]] || { note "tutti_step was not built" && return 1; }
  quiet
  limited "$ncu" --set none --csv --metrics dram__throughput.avg.pct_of_peak_sustained_elapsed,gpu__time_duration.sum \
    -k regex:norm_ --launch-count 300 "$program" --backend cuda --model resnet50 --batch 256 --precision bf16 --seconds 0.1 \
    --no-graph >"$logs/ncu.csv" || { note "ncu failed: may this user read the counters?" && return 1; }
  local line
  while read -r line; do row "  $line" "" "" "80 % of the memory's speed"; done < <("$python" - "$logs/ncu.csv" <<'EOF'
import csv, sys
lines = [l for l in open(sys.argv[1]) if l.startswith('"')]
launches = {}
for d in csv.DictReader(lines):
    launches.setdefault((d["ID"], d["Kernel Name"].split("<")[0].split("(")[0].split()[-1]), {})[d["Metric Name"]] = (
        float(d["Metric Value"].replace(",", "")), d["Metric Unit"])
kernels = {}
for (_, name), m in launches.items():
    share, time = m["dram__throughput.avg.pct_of_peak_sustained_elapsed"][0], m["gpu__time_duration.sum"]
    k = kernels.setdefault(name, [0.0, 0.0])
    seconds = time[0] * {"ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3}.get(time[1], 1e-9)
    k[0] += share * seconds
    k[1] += seconds
for name, (weighted, seconds) in sorted(kernels.items(), key=lambda k: -k[1][1]):
    print(f"{name}: {weighted / seconds:.0f} % of the memory's speed, {1e3 * seconds:.2f} ms")
EOF
  )
}

step_allreduce() {
  local program=$build/tree/bench/tutti_step with without
  [[ -x $program ]] || { note "tutti_step was not built" && return 1; }
  if ! "$program" --help 2>&1 | grep -c -- '--nccl' >/dev/null; then
    note "tutti_step has no --nccl"
    return 77
  fi
  quiet
  for turn in 1 2; do
    limited "$program" --backend cuda --model resnet50 --batch 256 --precision bf16 --seconds 2 >"$logs/alone.jsonl" || return
    limited "$program" --backend cuda --model resnet50 --batch 256 --precision bf16 --seconds 2 --nccl >"$logs/with-nccl.jsonl" || return
  done
  without=$(number "$logs/alone.jsonl" model=resnet50) with=$(number "$logs/with-nccl.jsonl" model=resnet50)
  row "ResNet-50, batch 256, NCCL without its kernels" "$with images/s" "alone: $without" "at most 1 % less: events, fork and join of one rank"
  program=$build/tree/bench/allreduce
  if [[ -x $program ]]; then
    limited "$program" --comm nccl --min 1024 --max 134217728 --factor 8 --iterations 40 || return
  fi
  (($(gpus) > 1)) || { note "one GPU: NCCL starts no kernel." && return; }
  # A rank for each GPU.
  local launcher=$build/tree/tools/tutti-launch
  program=$build/tree/examples/train_cifar10
  [[ -x $launcher && -x $program ]] || { note "tutti-launch was not built" && return 1; }
  limited "$launcher" -n "$(gpus)" "$program" --backend cuda --strategy nccl --precision bf16 --benchmark --max-steps 50 \
    --batch-size 512 --run-dir "$build/nccl-run" || { note "a rank for each of $(gpus) GPUs failed." && return 1; }
  rm -rf "$build/nccl-run"
  note "$(gpus) GPUs trained together."
}

step_convolutions() {
  local name program count=0
  quiet
  for name in convolution batch_norm; do
    program=$build/tree/bench/$name
    [[ -x $program ]] || { note "$name was not built." && continue; }
    "$program" --benchmark_list_tests --benchmark_filter=cuda | grep -ci cuda >/dev/null || { note "$name has no rows for cuda." && continue; }
    at_most 15 "$program" --benchmark_filter=cuda --benchmark_min_time=0.05 || return
    count=$((count + 1))
  done
  ((count > 0)) || return 77
  note "see $(log convolutions)."
}

# Where CUDA's libraries lie in pip's packages, programs must be told.
for folder in ${pip_folders[@]+"${pip_folders[@]}"}; do
  [[ -d $folder/lib ]] && export LD_LIBRARY_PATH="$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
done
# Plans and kernels of this run alone, so that it says what a first run costs.
export XDG_CACHE_HOME=$build/cache
rm -rf "$XDG_CACHE_HOME"
mkdir -p "$XDG_CACHE_HOME"
torch_pid=
for s in "${steps[@]}"; do run_step "$s"; done
