#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# run_fuzz.sh PROGRAM TARGET SECONDS CORPUS: fuzzes TARGET for SECONDS, starting with the files in the folder CORPUS if
# it exists. Changes neither the corpus nor the working folder. After a crash, prints the input in base64 and fails.
# TUTTI_FUZZ_SEED (default 1) is the fuzzer's seed. With 0 the fuzzer chooses one, for long searches. The test of
# seeded_bug passes if the target crashes with a report of AddressSanitizer.
set -euo pipefail
program=$1 target=$2 seconds=$3 corpus=$4

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/corpus" "$work/crash"
if [[ -d $corpus ]]; then cp -r "$corpus/." "$work/corpus/"; fi

# fuzz OPTION...: runs the fuzzer. One input may take at most 10 s and 2 GB, which a reader that trusts a length in the
# file would exceed.
status=0
fuzz() {
  TMPDIR=$work "$program" "$target" "$work/corpus" -seed="${TUTTI_FUZZ_SEED:-1}" -timeout=10 -rss_limit_mb=2048 \
    -malloc_limit_mb=1024 -max_len=65536 -print_final_stats=1 -verbosity=1 -artifact_prefix="$work/crash/" "$@" >"$work/log" 2>&1 ||
    status=$?
}
executed() { sed -n 's/^stat::number_of_executed_units: *//p' "$work/log"; }

if [[ $target == seeded_bug ]]; then
  # The limit is a number of inputs instead of seconds, so that a busy machine only takes longer.
  fuzz -runs=20000000
  if ((status != 0)) && grep -q 'ERROR: AddressSanitizer' "$work/log"; then
    echo "found the seeded bug after $(executed) inputs:"
    grep -m1 'ERROR: AddressSanitizer' "$work/log"
    exit 0
  fi
  tail -n 20 "$work/log"
  echo "the seeded bug was not found (status $status)"
  exit 1
fi

fuzz -max_total_time="$seconds"
# On a busy machine the seconds may pass before the first inputs.
if ((status == 0)) && (($(executed) < 1000)); then fuzz -runs=1000; fi
if ((status != 0)); then
  tail -n 80 "$work/log"
  for input in "$work"/crash/*; do
    [[ -f $input ]] || continue
    echo "input $(basename "$input"), base64:"
    base64 "$input" | head -c 20000
  done
  exit 1
fi
grep -E '^stat::number_of_executed_units' "$work/log"
if (($(executed) < 100)); then
  echo "only $(executed) inputs were tried"
  exit 1
fi
