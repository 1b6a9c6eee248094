#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds the C++ tests with Clang's sanitizers and runs them. Not part of ./test.sh, because it takes hours.
#   tests/sanitize.sh [--only AREA[,AREA...]] [--preset PRESET]... [--compiler CLANG++] [--jobs N] [--seconds N] [--again]
# An area is a folder of tests/; without --only all of them. Presets: asan-ubsan (the default), asan, ubsan, tsan. Without
# --compiler: the first of clang++-16, clang++-14 and clang++ that has them. A program that takes longer than --seconds
# (default: 1800) is ended and fails. Builds in build-PRESET-clang. Test scripts with a line "# sanitized: TARGET..." run
# too, after these targets were built.
# The tests are built and run a few at a time. build-PRESET-clang/sanitized has the result of each test that passed, so a
# script that was stopped continues when it is started again: a test whose program has not changed runs again only with
# --again. At the end, prints a table of the areas and the tests that failed, were skipped or could not be built. Exits
# with 1 if a test fails or does not compile, with 2 if the options are wrong.
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
presets=() compiler='' jobs=$(nproc) seconds=1800 again=''
while (($#)); do
  case $1 in
    --again)
      again=yes
      shift
      continue
      ;;
    --only | --preset | --compiler | --jobs | --seconds) (($# >= 2)) || die "[$1] expected a value, got none" ;;&
    --only)
      all=" ${areas[*]} "
      IFS=, read -ra areas <<<"$2"
      for area in "${areas[@]}"; do
        [[ $all == *" $area "* ]] || die "[--only] expected folders of tests/ with C++ tests:$all; got \"$area\""
      done
      ;;
    --preset)
      [[ $2 =~ ^(asan-ubsan|asan|ubsan|tsan)$ ]] || die "[--preset] expected asan-ubsan, asan, ubsan or tsan, got \"$2\""
      presets+=("$2")
      ;;
    --compiler) compiler=$2 ;;
    --jobs)
      [[ $2 =~ ^[1-9][0-9]*$ ]] || die "[--jobs] expected a number above 0, got \"$2\""
      jobs=$2
      ;;
    --seconds)
      [[ $2 =~ ^[1-9][0-9]*$ ]] || die "[--seconds] expected a number of seconds, got \"$2\""
      seconds=$2
      ;;
    *) die "[options] expected --only, --preset, --compiler, --jobs, --seconds or --again, got \"$1\"" ;;
  esac
  shift 2
done
((${#presets[@]})) || presets=(asan-ubsan)

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
declare -A sanitizers=(["asan-ubsan"]="address,undefined" [asan]=address [ubsan]=undefined [tsan]=thread)
for candidate in ${compiler:-clang++-16 clang++-14 clang++}; do
  if works "$candidate"; then found=$candidate && break; fi
done
[[ -n ${found:-} ]] ||
  die "[--compiler] expected a Clang with the sanitizers of ${presets[*]}, got ${compiler:-none}. hint: apt-get install clang-14 libclang-rt-14-dev"

output=$(mktemp)
trap 'rm -f "$output"' EXIT
failed=() skipped=() passed=0
declare -A counts # of PRESET AREA RESULT
count() { counts[$1]=$((${counts[$1]:-0} + 1)); }
# fails PRESET AREA TEXT: records a test that failed.
fails() {
  count "$1 $2 failed"
  failed+=("$3")
}
# skips PRESET AREA TEXT: records a test, or cases of a test, that did not run.
skips() {
  count "$1 $2 skipped"
  skipped+=("$3")
}
# judge PRESET AREA NAME KEY COMMAND...: runs a test within its time limit, and records the result. A test that has passed
# with the same key does not run again. KEY: a hash of what runs.
judge() {
  local preset=$1 area=$2 name="$1 $3" key=$4 status=0 start=$SECONDS line
  local file=$build/sanitized/${3//\//-}
  shift 4
  if [[ -z $again && -f $file && $(head -n 1 "$file") == "$key" ]]; then
    echo "== $name has passed before"
    sed 1d "$file" >"$output"
  else
    echo "== $name"
    rm -f "$file"
    timeout --kill-after=10 "$seconds" "$@" >"$output" 2>&1 || status=$?
    cat "$output"
    echo "== $name: status $status, $((SECONDS - start)) s"
    if ((status == 0)); then
      { echo "$key" && { grep -a '^SKIP: ' "$output" || true; }; } >"$file.new"
      mv "$file.new" "$file"
    fi
  fi
  while IFS= read -r line; do skips "$preset" "$area" "$name: ${line#SKIP: }"; done < <(grep -a '^SKIP: ' "$output" || true)
  case $status in
    0)
      passed=$((passed + 1))
      count "$preset $area passed"
      ;;
    77) ;;
    124 | 137) fails "$preset" "$area" "$name (longer than $seconds s)" ;;
    *) fails "$preset" "$area" "$name" ;;
  esac
}
hash_of() { cat "$@" | sha256sum | cut -d ' ' -f 1; }
for preset in "${presets[@]}"; do
  build=build-$preset-clang
  cmake --preset "$preset" -B "$build" -D CMAKE_CXX_COMPILER="$found" -D TUTTI_WERROR=OFF | tee "$output"
  mkdir -p "$build/sanitized"
  said=$(<"$output")
  known=$(cmake --build "$build" --target help)
  is_target() { grep -qE "(^|[ /])$1(:|$)" <<<"$known"; }
  export TUTTI_SOURCE_DIR=$PWD TUTTI_BUILD_DIR=$PWD/$build
  export TUTTI_SANITIZE=${sanitizers[$preset]}
  for area in "${areas[@]}"; do
    programs=()
    for source in "tests/$area"/test_*.cpp; do
      name=$(basename "$source" .cpp)
      if is_target "tests_${area}_$name"; then
        programs+=("$name")
      else
        # The library that this program needs is missing.
        why=$(sed -n "s/.*tutti: tests_${area}_$name is not built: //p" <<<"$said")
        skips "$preset" "$area" "$preset $area/$name: not built: ${why:-see what CMake says}"
      fi
    done
    for ((first = 0; first < ${#programs[@]}; first += jobs)); do
      group=("${programs[@]:first:jobs}")
      # A test that does not compile fails below, and does not stop the other tests.
      cmake --build "$build" --parallel "$jobs" --target "${group[@]/#/tests_${area}_}" -- -k 0 || true
      for name in "${group[@]}"; do
        # Otherwise the program of an earlier build would run in place of a program that no longer compiles.
        if ! cmake --build "$build" --target "tests_${area}_$name" >"$output" 2>&1; then
          fails "$preset" "$area" "$preset $area/$name (does not compile)"
          continue
        fi
        program=$build/tests/$area/$name
        judge "$preset" "$area" "$area/$name" "$(hash_of "$program")" "$program" --no-colors=true --duration=true
      done
    done
    for script in "tests/$area"/test_*.{sh,py}; do
      read -ra needed < <(sed -n 's/^# sanitized: //p' "$script") || continue
      absent=() built=()
      for target in "${needed[@]}"; do
        is_target "$target" || absent+=("$target")
        built+=("$build/tests/$area/${target#tests_"${area}"_}")
      done
      if ((${#absent[@]})); then
        skips "$preset" "$area" "$preset $script: no ${absent[*]}"
      elif ! cmake --build "$build" --parallel "$jobs" --target "${needed[@]}"; then
        fails "$preset" "$area" "$preset $script (its programs do not compile)"
      else
        interpreter=bash
        [[ $script == *.sh ]] || interpreter=python3
        judge "$preset" "$area" "$script" "$(hash_of "$script" "${built[@]}")" "$interpreter" "$script"
      fi
    done
  done
done
echo "| area | preset | tests that pass | fail | cases or tests that were skipped |"
echo "|---|---|---|---|---|"
for preset in "${presets[@]}"; do
  for area in "${areas[@]}"; do
    row=("${counts[$preset $area passed]:-0}" "${counts[$preset $area failed]:-0}" "${counts[$preset $area skipped]:-0}")
    [[ ${row[*]} == "0 0 0" ]] || echo "| $area | $preset | ${row[0]} | ${row[1]} | ${row[2]} |"
  done
done
((!${#skipped[@]})) || printf 'sanitize.sh: skipped: %s\n' "${skipped[@]}"
((!${#failed[@]})) || printf 'sanitize.sh: FAILED: %s\n' "${failed[@]}"
version=$("$found" --version | head -n 1)
echo "sanitize.sh: $passed tests pass with ${presets[*]} of $version, ${#failed[@]} fail, ${#skipped[@]} are skipped"
((${#failed[@]} == 0))
