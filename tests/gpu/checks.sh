# SPDX-License-Identifier: MIT
# The steps of run.sh that check: the test programs, the description of the GPU, the sanitizer. run.sh sources this
# file.
# shellcheck shell=bash disable=SC2154

# Lists the test programs with cases that need a GPU. The names of these cases begin with "gpu: ", and only they run here:
# the others need no GPU, and would take a minute of it.
cuda_tests() { (cd "$root/tests" && grep -l 'TEST_CASE("gpu: ' ./*/test_*.cpp | sed 's|^\./||'); }
target_of() { echo "tests_$(dirname "$1")_$(basename "$1" .cpp)"; }
program_of() { echo "$build/tree/tests/$(dirname "$1")/$(basename "$1" .cpp)"; }

step_describe() {
  local program=$build/tree/tests/backends/describe_device file=$out/device.json
  [[ -x $program ]] || { note "describe_device was not built" && return 1; }
  limited "$program" >"$build/device.json" && [[ -s $build/device.json ]] && mv "$build/device.json" "$file" || return 1
  note "$file: compare with tests/backends/devices; where they differ, replace that file and run test_cudnn_plans"
}

# Runs the cases of the test programs that need a GPU, or only $test_cases, and adds them up. doctest prints "test cases: 9 | 8 passed
# | 1 failed".
run_tests() {
  local program passed=0 failed=0 skipped=0 status=0 text any=false code
  for program in "$@"; do
    if [[ ! -x $program ]]; then
      note "$(basename "$program") was not built."
      status=1
      continue
    fi
    any=true
    text=$(cd "$root" && limited "$program" --no-colors --test-case="${test_cases:-gpu: *}" 2>&1)
    code=$?
    echo "$text"
    ((code == 0)) || status=$code
    passed=$((passed + $(sed -nE 's/.*test cases: .*\| +([0-9]+) passed.*/\1/p' <<<"$text" | tail -n 1 | grep . || echo 0)))
    failed=$((failed + $(sed -nE 's/.*test cases: .*\| +([0-9]+) failed.*/\1/p' <<<"$text" | tail -n 1 | grep . || echo 0)))
    skipped=$((skipped + $(grep -c '^SKIP: ' <<<"$text")))
    line "$(basename "$program"): status $code, $(grep -E 'test cases:' <<<"$text" | tail -n 1)"
  done
  $any || return 1
  note "$passed cases passed, $failed failed, $skipped of these skipped."
  return $status
}
programs_matching() { cuda_tests | grep -E "$1" | while read -r f; do program_of "$f"; done; }

step_libraries() {
  local list
  mapfile -t list < <(programs_matching '^backends/test_cuda_libraries\.cpp$')
  run_tests "${list[@]}"
}
step_conformance() {
  local list
  mapfile -t list < <(programs_matching '^(engine|backends|train|graph)/' | grep -vE '/test_(cuda_libraries|nccl.*)$')
  [[ ${#list[@]} -gt 0 ]] || { note "no test program of the cuda backend" && return 1; }
  run_tests "${list[@]}"
}
step_golden() {
  local list
  mapfile -t list < <(programs_matching '^golden/')
  [[ ${#list[@]} -gt 0 ]] || { note "no golden test names the cuda backend" && return 77; }
  run_tests "${list[@]}"
}
step_nccl() {
  local list
  mapfile -t list < <(programs_matching '/test_nccl')
  (($(gpus) > 1)) || note "with one rank NCCL starts no kernel."
  run_tests "${list[@]}"
}

step_sanitizer() {
  local tool sanitizer status=0 code half=$(($(step_left) / 2 - 3))
  local program=$build/tree/examples/train_cifar10
  sanitizer=$(tool compute-sanitizer)
  [[ -x $program ]] || { note "train_cifar10 was not built" && return 1; }
  # Stores plans and kernels before the sanitizer runs: a process spends most of its time on making them, and the
  # sanitizer slows that down.
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
