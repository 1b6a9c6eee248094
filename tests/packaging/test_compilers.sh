#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# takes long
# processors: 2
# Builds the downstream project with each supported compiler and standard, in a path with spaces, for plain x86-64,
# without a warning, and runs each program with each instruction set. C++20 uses oneDNN, and C++23 uses Eigen. The first
# loss, after one forward pass, must be the same to 1e-4. The last loss, 16 steps later, must be the same to 1e-3:
# compilers and instruction sets fuse different multiply-adds, and steps amplify the difference.
#   test_compilers.sh [COMPILER...]    other compilers, g++-11 for example
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
mkdir "$work/a path" "$work/a path/with spaces"
cp -r "$TUTTI_SOURCE_DIR"/examples/downstream/. "$work/a path/with spaces"
cd "$work/a path/with spaces"

compilers=("$@") plain=()
if (($# == 0)); then
  compilers=(g++-12 clang++-14 clang++-16)
  # These compilers optimise tutti's functions in the programs with Eigen. The programs with oneDNN differ from them in calls
  # of a library.
  [[ ${TUTTI_CHECK_ALL:-} == 1 ]] || plain=("g++-12 c++20" "clang++-16 c++20")
fi
found=$(components)

# The instruction sets of this machine. With another one, the program would silently use a smaller instruction set.
here=(baseline)
if grep -qw avx2 /proc/cpuinfo && grep -qw fma /proc/cpuinfo; then here+=(avx2); fi
if grep -qw avx512f /proc/cpuinfo && grep -qw avx512bw /proc/cpuinfo && grep -qw avx512vl /proc/cpuinfo &&
  grep -qw avx512dq /proc/cpuinfo; then here+=(avx512); fi

# build COMPILER STANDARD: makes the program "COMPILER STANDARD", and a log of the same name with the compiler's output.
# Uses -O1, because the test only checks that the program is correct, and -O0 for programs in `plain`.
build() {
  local name="$1 $2" level=-O1 flags=(-I "$TUTTI_SOURCE_DIR/include" -I "$TUTTI_BUILD_DIR/include") libraries=()
  if [[ $2 == c++20 && $found == *onednn* ]]; then
    flags+=(-D TUTTI_HAS_ONEDNN=1)
    libraries=(-ldnnl -lgomp)
  elif [[ $2 != c++20 && $found == *eigen* ]]; then
    flags+=(-D TUTTI_HAS_EIGEN=1 -isystem /usr/include/eigen3)
  fi
  if [[ " ${plain[*]/%/,}" == *" $name,"* ]]; then level=-O0; fi
  "$1" -std="$2" "$level" -Wall -Wextra -Wpedantic -pthread "${flags[@]}" main.cpp report.cpp -o "$name" "${libraries[@]}" >"$name.log" 2>&1
}

passed=0 total=0 failed=0 skipped=()
first_want= last_want=
# close NAME GOT WANT TOLERANCE: checks that two losses are equal within a tolerance.
close() {
  awk -v got="$2" -v want="$3" -v tolerance="$4" 'BEGIN { d = got - want; exit !(d <= tolerance && -d <= tolerance) }' ||
    { echo "$1: expected $3 within $4, got $2" && return 1; }
}
check() { # check COMPILER STANDARD
  local name="$1 $2" isa out first last
  if [[ -s $name.log ]]; then
    echo "$name: the compiler says:"
    head -n 40 "$name.log"
    failed=1
  fi
  for isa in baseline avx2 avx512; do
    total=$((total + 1))
    if [[ " ${here[*]} " != *" $isa "* ]]; then
      skipped+=("$name at $isa: this machine lacks it")
      continue
    fi
    if ! out=$(TUTTI_ISA=$isa "./$name" 2>&1); then
      echo "$name at $isa: exit $?: $out"
      failed=1
      continue
    fi
    read -r first last <<<"$(sed -n 's/.*loss \([0-9.]*\) -> \([0-9.]*\)$/\1 \2/p' <<<"$out")"
    [[ -n $first_want ]] || first_want=$first last_want=$last
    if close "$name at $isa, first loss" "$first" "$first_want" 1e-4 && close "$name at $isa, last loss" "$last" "$last_want" 1e-3; then
      passed=$((passed + 1))
    else
      failed=1
    fi
  done
}

# Builds with two compilers at a time.
jobs=()
for compiler in "${compilers[@]}"; do
  for standard in c++20 c++2b; do
    if ! command -v "$compiler" >/dev/null; then
      skipped+=("$compiler $standard: no such compiler (Debian: apt-get install ${compiler/clang++/clang})")
      total=$((total + 3))
      continue
    fi
    jobs+=("$compiler $standard")
  done
done
running=0
for job in "${jobs[@]}"; do
  if ((running == 2)); then
    wait -n || failed=1
    running=1
  fi
  # The shell must split a compiler and a standard into two words.
  # shellcheck disable=SC2086
  build $job &
  running=$((running + 1))
done
for ((; running > 0; --running)); do wait -n || failed=1; done
for job in "${jobs[@]}"; do
  # shellcheck disable=SC2086
  check $job
done
for reason in "${skipped[@]}"; do echo "skipped: $reason"; done
echo "$passed of $total"
((!failed)) || exit 1
if ((passed == 0)); then
  echo "SKIP: none of ${compilers[*]} is here"
  exit 77
fi
