#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# processors: 2
# Tests the tutorial's training program: it trains, evaluates, saves and continues. Two processes continue a run that
# one process started.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh" training

expect 0 "epoch 3: " run
grep -q "top-1 100.0 %" out || complain "it does not learn: $(cat out)"
[[ $(find run/checkpoints -maxdepth 1 -name 'step-*' | wc -l) == 3 ]] || complain "not the two newest and the best: $(ls run/checkpoints)"
expect 0 "going on after step 48" run
expect 2 "[make_strategy] expected solo" run ring

# Two processes continue from the checkpoint of the first epoch.
if [[ -x $(command -v mpirun) ]] && "$program" other mpi >/dev/null 2>&1; then
  cp -r other two
  newest=$(find two/checkpoints -maxdepth 1 -name 'step-*' | sort | tail -n 1)
  rm -r "$newest"
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -np 2 --bind-to none --oversubscribe "$program" two >out 2>&1 ||
    complain "two processes: $(tail -n 3 out)"
  grep -qF "going on after step 32" out || complain "two processes do not go on: $(cat out)"
  [[ $(grep -c "epoch 3: " out) == 1 ]] || complain "not one line of epoch 3: $(cat out)"
  expect 0 "going on after step 48" two
else
  echo "no mpirun, or no strategy mpi: one process alone was tested"
fi
finish
