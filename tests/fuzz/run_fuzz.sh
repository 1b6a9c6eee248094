#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# run_fuzz.sh PROGRAM SECONDS CORPUS: fuzzes for SECONDS, starting from the files of the folder CORPUS if it exists, and
# leaves both the corpus and the working folder as they were. A crash prints the input in base64 and fails.
# TUTTI_FUZZ_SEED (1) is the fuzzer's; 0 lets it choose one, for long searches.
# For fuzz_seeded_bug the verdict is turned round: it must crash with a report of AddressSanitizer.
set -euo pipefail
program=$1 seconds=$2 corpus=$3

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/corpus" "$work/crash"
if [[ -d $corpus ]]; then cp -r "$corpus/." "$work/corpus/"; fi

# One input may take neither 10 s nor 2 GB: a reader that believes a length in the file would.
status=0
TMPDIR=$work "$program" "$work/corpus" -seed="${TUTTI_FUZZ_SEED:-1}" -max_total_time="$seconds" -timeout=10 \
  -rss_limit_mb=2048 -malloc_limit_mb=1024 -max_len=65536 -print_final_stats=1 -verbosity=1 -artifact_prefix="$work/crash/" >"$work/log" 2>&1 || status=$?

if [[ $(basename "$program") == fuzz_seeded_bug ]]; then
  if ((status != 0)) && grep -q 'ERROR: AddressSanitizer' "$work/log"; then
    echo "found the seeded bug:"
    grep -m1 'ERROR: AddressSanitizer' "$work/log"
    exit 0
  fi
  tail -n 20 "$work/log"
  echo "the seeded bug was not found within $seconds s (status $status)"
  exit 1
fi

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
executed=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log")
if ((executed < 100)); then
  echo "only $executed inputs were tried"
  exit 1
fi
