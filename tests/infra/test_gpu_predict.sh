#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests that the tables of predictions in docs/reference/gpu.md are what bench/scaling/gpu_step.py computes from the bytes that this
# build counts.
set -euo pipefail
root=${TUTTI_SOURCE_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
program=${TUTTI_BUILD_DIR:-$root/build}/tests/backends/test_fuse_norms_traffic
command -v python3 >/dev/null || { echo "SKIP: no python3" && exit 77; }
[[ -x $program ]] || { echo "SKIP: no $program (built with the CUDA toolkit)" && exit 77; }
table=$(python3 "$root/bench/scaling/gpu_step.py" "$program")
echo "$table"
for row in 'images/s' 'all, first process'; do
  grep -q "^| $row | " <<<"$table" || { echo "FAILED: no row of $row" && exit 1; }
done
while read -r line; do
  grep -qxF -- "$line" "$root/docs/reference/gpu.md" || { echo "FAILED: docs/reference/gpu.md lacks: $line" && exit 1; }
done <<<"$table"
