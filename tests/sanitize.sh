#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds the C++ tests with Clang's sanitizers and runs them. Not part of ./test.sh, because it would double its time.
#   tests/sanitize.sh [--only AREA[,AREA...]] [--preset asan|ubsan|tsan]... [--compiler CLANG++] [--jobs N] [--seconds N]
# An area is a folder of tests/; without --only all of them. Without --preset: asan and ubsan. Without --compiler: the
# first of clang++-16, clang++-14 and clang++ that has them. A program that takes longer than --seconds (default: 1800)
# is ended and fails. Builds in build-PRESET-clang. Test scripts with a line "# sanitized: TARGET..." run too, after
# these targets were built. At the end, prints the tests that failed, were skipped or could not be built. Exits with 1
# if a test fails or does not compile, with 2 if the options are wrong.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
die() {
  echo "sanitize.sh: $*" >&2
  exit 2
}

shopt -s nullglob
areas=()
for file in tests/*/test_*.cpp; do
  area=$(basename "$(dirname "$file")")
  [[ " ${areas[*]} " == *" $area "* ]] || areas+=("$area")
done
presets=() compiler='' jobs=$(nproc) seconds=1800
while (($#)); do
  case $1 in
    --only | --preset | --compiler | --jobs | --seconds) (($# >= 2)) || die "[$1] expected a value, got none" ;;&
    --only)
      all=" ${areas[*]} "
      IFS=, read -ra areas <<<"$2"
      for area in "${areas[@]}"; do
        [[ $all == *" $area "* ]] || die "[--only] expected folders of tests/ with C++ tests:$all; got \"$area\""
      done
      ;;
    --preset)
      [[ $2 =~ ^(asan|ubsan|tsan)$ ]] || die "[--preset] expected asan, ubsan or tsan, got \"$2\""
      presets+=("$2")
      ;;
    --compiler) compiler=$2 ;;
    --jobs) jobs=$2 ;;
    --seconds)
      [[ $2 =~ ^[1-9][0-9]*$ ]] || die "[--seconds] expected a number of seconds, got \"$2\""
      seconds=$2
      ;;
    *) die "[options] expected --only, --preset, --compiler, --jobs or --seconds, got \"$1\"" ;;
  esac
  shift 2
done
((${#presets[@]})) || presets=(asan ubsan)

# works COMPILER: succeeds if the compiler exists with the libraries of each requested sanitizer. A package may contain
# only some of these libraries.
works() {
  local probe preset status=0
  probe=$(mktemp)
  for preset in "${presets[@]}"; do
    echo 'int main() {}' | "$1" -x c++ - "-fsanitize=${sanitizers[$preset]}" -o "$probe" 2>/dev/null || status=1
  done
  rm -f "$probe"
  return $status
}
declare -A sanitizers=([asan]=address [ubsan]=undefined [tsan]=thread)
for candidate in ${compiler:-clang++-16 clang++-14 clang++}; do
  if works "$candidate"; then found=$candidate && break; fi
done
[[ -n ${found:-} ]] ||
  die "[--compiler] expected a Clang with the sanitizers of ${presets[*]}, got ${compiler:-none}. hint: apt-get install clang-14 libclang-rt-14-dev"

output=$(mktemp)
trap 'rm -f "$output"' EXIT
failed=() skipped=() passed=0
# judge NAME COMMAND...: runs a test within its time limit, and records the result.
judge() {
  local name=$1 status=0 start=$SECONDS
  shift
  echo "== $name"
  timeout --kill-after=10 "$seconds" "$@" >"$output" 2>&1 || status=$?
  cat "$output"
  echo "== $name: status $status, $((SECONDS - start)) s"
  while IFS= read -r line; do skipped+=("$name: ${line#SKIP: }"); done < <(grep -a '^SKIP: ' "$output" || true)
  case $status in
    0) passed=$((passed + 1)) ;;
    77) ;;
    124 | 137) failed+=("$name (longer than $seconds s)") ;;
    *) failed+=("$name") ;;
  esac
}
for preset in "${presets[@]}"; do
  build=build-$preset-clang
  cmake --preset "$preset" -B "$build" -D CMAKE_CXX_COMPILER="$found" -D TUTTI_WERROR=OFF | tee "$output"
  said=$(<"$output")
  known=$(cmake --build "$build" --target help)
  is_target() { grep -qE "(^|[ /])$1(:|$)" <<<"$known"; }
  targets=() programs=() scripts=()
  for area in "${areas[@]}"; do
    for source in "tests/$area"/test_*.cpp; do
      target=tests_${area}_$(basename "$source" .cpp)
      if is_target "$target"; then
        targets+=("$target")
        programs+=("$area/$(basename "$source" .cpp)")
      else
        # The library that this program needs is missing.
        why=$(sed -n "s/.*tutti: $target is not built: //p" <<<"$said")
        skipped+=("$preset $area/$(basename "$source" .cpp): not built: ${why:-see what CMake says}")
      fi
    done
    for script in "tests/$area"/test_*.{sh,py}; do
      read -ra needed < <(sed -n 's/^# sanitized: //p' "$script") || continue
      absent=()
      for target in "${needed[@]}"; do
        if is_target "$target"; then targets+=("$target"); else absent+=("$target"); fi
      done
      if ((${#absent[@]})); then skipped+=("$preset $script: no ${absent[*]}"); else scripts+=("$script"); fi
    done
  done
  # A test that does not compile fails later, and does not stop the other tests.
  ((!${#targets[@]})) || cmake --build "$build" --parallel "$jobs" --target "${targets[@]}" -- -k 0 || true
  export TUTTI_SOURCE_DIR=$PWD TUTTI_BUILD_DIR=$PWD/$build
  export TUTTI_SANITIZE=${sanitizers[$preset]}
  for program in "${programs[@]}"; do
    # Otherwise the program of an earlier build would run in place of a program that no longer compiles.
    if ! cmake --build "$build" --target "tests_${program/\//_}" >"$output" 2>&1; then
      failed+=("$preset $program (does not compile)")
      continue
    fi
    judge "$preset $program" "$build/tests/$program" --no-colors=true --duration=true
  done
  for script in "${scripts[@]}"; do
    interpreter=bash
    [[ $script == *.sh ]] || interpreter=python3
    judge "$preset $script" "$interpreter" "$script"
  done
done
((!${#skipped[@]})) || printf 'sanitize.sh: skipped: %s\n' "${skipped[@]}"
((!${#failed[@]})) || printf 'sanitize.sh: FAILED: %s\n' "${failed[@]}"
version=$("$found" --version | head -n 1)
echo "sanitize.sh: $passed tests pass with ${presets[*]} of $version, ${#failed[@]} fail, ${#skipped[@]} are skipped"
((${#failed[@]} == 0))
