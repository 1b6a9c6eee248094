#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# takes long
# processors: 2
# Builds the downstream project with three compilers in a path with spaces, for plain x86-64, without a warning, and runs
# each program with each instruction set. Both standards and both backends occur: C++20 uses oneDNN, and C++23 uses Eigen.
# With TUTTI_CHECK_ALL=1 each compiler builds both.
#
# Programs differ in the rounding of their sums. The first loss, after one forward pass, differs by 1e-7 and must be the
# same to 2e-5, as its last printed digit is 1e-5. The last loss, 16 steps later, must be the same to 5e-3. Most programs
# differ by less than 1e-6 there. But if an input of a relu is so close to 0 that rounding decides its sign, one element of
# a gradient appears or vanishes: one such input of 4,096 (-1e-6 in f64) changes the last loss from 0.0242 to 0.0231, and
# biases moved by up to 2e-3, so that other inputs change their sign in the first step, change it by up to 9e-4.
#   test_compilers.sh [COMPILER...]    other compilers with both standards, g++-11 for example
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
mkdir "$work/a path" "$work/a path/with spaces"
cp -r "$TUTTI_SOURCE_DIR"/examples/downstream/. "$work/a path/with spaces"
cd "$work/a path/with spaces"

compilers=("$@") programs=()
if (($# == 0)); then
  compilers=(g++-12 clang++-14 clang++-16)
  [[ ${TUTTI_CHECK_ALL:-} == 1 ]] || programs=("g++-12 c++2b" "clang++-14 c++20" "clang++-16 c++2b")
fi
if ((${#programs[@]} == 0)); then
  for compiler in "${compilers[@]}"; do programs+=("$compiler c++20" "$compiler c++2b"); done
fi
found=$(components)

# The instruction sets of this machine. With another one, the program would silently use a smaller instruction set.
here=(baseline)
if grep -qw avx2 /proc/cpuinfo && grep -qw fma /proc/cpuinfo; then here+=(avx2); fi
if grep -qw avx512f /proc/cpuinfo && grep -qw avx512bw /proc/cpuinfo && grep -qw avx512vl /proc/cpuinfo &&
  grep -qw avx512dq /proc/cpuinfo; then here+=(avx512); fi

# build COMPILER STANDARD: makes the program "COMPILER STANDARD", and a log of the same name with the compiler's output.
# Uses -O1, because the test only checks that the program is correct.
build() {
  local name="$1 $2" flags=(-I "$TUTTI_SOURCE_DIR/include" -I "$TUTTI_BUILD_DIR/include") libraries=()
  if [[ $2 == c++20 && $found == *onednn* ]]; then
    flags+=(-D TUTTI_HAS_ONEDNN=1)
    libraries=(-ldnnl -lgomp)
  elif [[ $2 != c++20 && $found == *eigen* ]]; then
    flags+=(-D TUTTI_HAS_EIGEN=1 -isystem /usr/include/eigen3)
  fi
  "$1" -std="$2" -O1 -Wall -Wextra -Wpedantic -pthread "${flags[@]}" main.cpp report.cpp -o "$name" "${libraries[@]}" >"$name.log" 2>&1
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
    if close "$name at $isa, first loss" "$first" "$first_want" 2e-5 && close "$name at $isa, last loss" "$last" "$last_want" 5e-3; then
      passed=$((passed + 1))
    else
      failed=1
    fi
  done
}

# Builds with two compilers at a time.
jobs=()
for program in "${programs[@]}"; do
  compiler=${program% *}
  if ! command -v "$compiler" >/dev/null; then
    skipped+=("$program: no such compiler (Debian: apt-get install ${compiler/clang++/clang})")
    total=$((total + 3))
    continue
  fi
  jobs+=("$program")
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
