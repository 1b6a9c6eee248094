#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs each test that waits many times next to busy processes, and counts the failures. Not part of ./test.sh.
#   tests/repeat.sh [--times N] [--load N] [--lanes N] [--label LABEL] [--only REGEX] [--build FOLDER] [--out FOLDER]
# --times 20: number of runs of each test. --load 12: number of busy processes. --lanes 3: number of tests that run at
# the same time. --label waits: runs the tests with this label of ctest. --only: runs those of them with a matching
# name. --build build: the build folder of ./test.sh. --out BUILD/repeat: folder for results.tsv, with a line for each
# run, and for the log of each failure. A run that results.tsv contains is not repeated, so a script that was stopped
# continues when it is started again. Prints a table at the end. Exit code 1: a run failed. 2: bad options.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
die() {
  echo "repeat.sh: $*" >&2
  exit 2
}

times=20 load=12 lanes=3 label=waits only=. build=build out=
while (($#)); do
  (($# >= 2)) || die "[$1] expected a value, got none. hint: see the first lines of tests/repeat.sh"
  case $1 in
    --times | --lanes) [[ $2 =~ ^[1-9][0-9]*$ ]] || die "[$1] expected a number above 0, got \"$2\"" ;;&
    --load) [[ $2 =~ ^[0-9]+$ ]] || die "[$1] expected a number of processes, got \"$2\"" ;;&
    --times) times=$2 ;;
    --lanes) lanes=$2 ;;
    --load) load=$2 ;;
    --label) label=$2 ;;
    --only) only=$2 ;;
    --build) build=$2 ;;
    --out) out=$2 ;;
    *) die "[options] expected --times, --load, --lanes, --label, --only, --build or --out, got \"$1\"" ;;
  esac
  shift 2
done
[[ -f $build/CTestTestfile.cmake ]] || die "[--build] expected a build with tests, got $build. hint: ./test.sh -N builds everything"
out=${out:-$build/repeat}
mkdir -p "$out"
touch "$out/results.tsv"

# Reads the names from lines such as "  Test #12: hosts/train".
mapfile -t names < <(ctest --test-dir "$build" -N -L "^($label)\$" -R "$only" | sed -n 's/^ *Test *#[0-9]*: //p')
((${#names[@]})) || die "[--only] expected a test with the label $label that matches \"$only\", got none"

# run ROUND NAME: runs a test once, and then writes its line.
run() {
  local round=$1 name=$2 begin=$SECONDS result=green log quoted
  log=$out/${name//[^A-Za-z0-9_.-]/_}.$round.log
  # shellcheck disable=SC2001  # no ${name//...} does this
  quoted=$(sed 's/[][\\.*^$+?(){}|]/\\&/g' <<<"$name")
  ctest --test-dir "$build" -R "^$quoted\$" --no-tests=error --output-on-failure >"$log" 2>&1 || result=red
  if [[ $result == green ]]; then
    if grep -q '^The following tests did not run' "$log"; then result=skipped; fi
    rm -f "$log"
  fi
  printf '%s\t%s\t%s\t%s\n' "$name" "$round" "$result" $((SECONDS - begin)) >>"$out/results.tsv"
}
export -f run
export out build

busy=()
end() { ((${#busy[@]} == 0)) || kill "${busy[@]}" 2>/dev/null || true; }
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
for ((i = 0; i < load; ++i)); do
  (while :; do :; done) &
  busy+=($!)
done

# shellcheck disable=SC2016  # the inner shell expands it
for ((round = 1; round <= times; ++round)); do
  for name in "${names[@]}"; do
    grep -qP "^\Q$name\E\t$round\t" "$out/results.tsv" || printf '%s\0%s\0' "$round" "$name"
  done
done | xargs -0 -r -P "$lanes" -n 2 bash -c 'run "$1" "$2"' _

# Counts only the tests that were selected.
printf '%s\n' "${names[@]}" | awk -F '\t' '
  NR == FNR { want[$1]; next }
  $1 in want { ++runs[$1]; red[$1] += $3 == "red"; skipped[$1] += $3 == "skipped"; if ($4 > most[$1]) most[$1] = $4 }
  END {
    printf "%-48s %5s %5s %8s %9s\n", "test", "runs", "red", "skipped", "longest s"
    for (name in runs) printf "%-48s %5d %5d %8d %9d\n", name, runs[name], red[name], skipped[name], most[name] | "sort -k3,3nr -k1,1"
    close("sort -k3,3nr -k1,1")
    for (name in red) all += red[name]
    exit all > 0
  }' - "$out/results.tsv"
