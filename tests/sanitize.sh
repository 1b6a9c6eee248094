#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds the C++ tests with Clang's sanitizers and runs them. Not part of ./test.sh, whose time it would double.
#   tests/sanitize.sh [--only AREA[,AREA...]] [--preset asan|ubsan|tsan]... [--compiler CLANG++] [--jobs N]
# An area is a folder of tests/; without --only all of them. Without --preset: asan and ubsan. Without --compiler: the
# first of clang++-16, clang++-14 and clang++ that has its sanitizers. Builds in build-PRESET-clang. Ends with 1 if a
# test fails, with 2 if it is not told well what to do.
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
presets=() compiler='' jobs=$(nproc)
while (($#)); do
  case $1 in
    --only | --preset | --compiler | --jobs) (($# >= 2)) || die "[$1] expected a value, got none" ;;&
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
    *) die "[options] expected --only, --preset, --compiler or --jobs, got \"$1\"" ;;
  esac
  shift 2
done
((${#presets[@]})) || presets=(asan ubsan)

# works COMPILER: is it there, with its sanitizers?
works() {
  local probe status=0
  probe=$(mktemp)
  echo 'int main() {}' | "$1" -x c++ - -fsanitize=address -o "$probe" 2>/dev/null || status=1
  rm -f "$probe"
  return $status
}
for candidate in ${compiler:-clang++-16 clang++-14 clang++}; do
  if works "$candidate"; then found=$candidate && break; fi
done
[[ -n ${found:-} ]] || die "[--compiler] expected a Clang with its sanitizers, got ${compiler:-none}. hint: apt-get install clang-14 libclang-rt-14-dev"

# What Open MPI, OpenCL and OpenMP keep until the process ends is not ours.
export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}
export UBSAN_OPTIONS=print_stacktrace=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}
failed=() passed=0
for preset in "${presets[@]}"; do
  build=build-$preset-clang
  cmake --preset "$preset" -B "$build" -D CMAKE_CXX_COMPILER="$found" -D TUTTI_WERROR=OFF -D TUTTI_BUILD_EXAMPLES=OFF \
    -D TUTTI_BUILD_TOOLS=OFF
  # A program whose library is absent is no target.
  known=$(cmake --build "$build" --target help)
  programs=() targets=()
  for area in "${areas[@]}"; do
    for source in "tests/$area"/test_*.cpp; do
      name=$(basename "$source" .cpp)
      if [[ $known == *"tests_${area}_$name"* ]]; then
        targets+=("tests_${area}_$name")
        programs+=("$build/tests/$area/$name")
      fi
    done
  done
  cmake --build "$build" --parallel "$jobs" --target "${targets[@]}"
  for program in "${programs[@]}"; do
    echo "== $program"
    if "$program" --no-colors=true; then passed=$((passed + 1)); else failed+=("$program"); fi
  done
done
echo "sanitize.sh: $passed programs pass with ${presets[*]} of $found, ${#failed[@]} fail: ${failed[*]}"
((${#failed[@]} == 0))
