#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# waits
# sanitized: tests_backends_mpi_conformance tests_backends_mpi_faults tests_backends_mpi_whole_steps
# Tests the MPI communicator with processes under mpirun: every configuration with 1, 2 and 4 ranks, and ranks that fail.
set -uo pipefail
folder=${TUTTI_BUILD_DIR:?}/tests/backends
if [[ ! -x $folder/mpi_conformance ]]; then
  echo "SKIP: no $folder/mpi_conformance; MPI is missing (Debian: apt-get install libopenmpi-dev openmpi-bin)"
  exit 77
fi
command -v mpirun >/dev/null || { echo "FAILED: no mpirun (Debian: apt-get install openmpi-bin)" && exit 1; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Open MPI and its helpers have leaks.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Files that killed jobs leave are in this folder, which the test deletes.
export OMPI_MCA_btl_vader_backing_directory=$work OMPI_MCA_orte_tmpdir_base=$work
failures=0
complain() {
  echo "FAILED: $*"
  sed 's/^/  | /' "$work/out" | head -n 30
  failures=$((failures + 1))
}
# on RANKS PROGRAM ...: runs a job; stores its output and returns its status.
on() {
  local ranks=$1
  shift
  timeout --kill-after=5 240 mpirun --oversubscribe --bind-to none -np "$ranks" "$@" >"$work/out" 2>&1
}
says() { grep -qE -- "$1" "$work/out" || complain "$2: it does not say '$1'"; }

for ranks in 1 2 4; do
  on $ranks "$folder/mpi_conformance" || complain "conformance with $ranks ranks: status $?"
  says "^[0-9]+ cases with $ranks ranks" "conformance with $ranks ranks"
done

on 2 "$folder/mpi_faults" plain errors || complain "errors of MPI: status $?"
says "^\[step 3\] expected MPI_Recv to succeed, got MPI_ERR_TRUNCATE" "an error of MPI"
says "^\[MPI\] expected one MPI session per process, got a second session" "a second session"

# If a rank cannot make windows, no rank uses them, and one line says so.
on 2 python3 "${TUTTI_SOURCE_DIR:?}/tests/comm/without_call.py" refused memfd_create "$folder/mpi_faults" shared waits
status=$?
if [[ $status == 77 ]]; then
  echo "SKIP: this system takes no filter of system calls"
else
  [[ $status == 0 ]] || complain "no windows: status $status"
  [[ $(grep -c "memfd_create: Operation not permitted; this job runs without shared memory" "$work/out") == 1 ]] ||
    complain "no windows: not one line"
fi
# Windows must not use /dev/shm.
if unshare -m mount -t tmpfs none /mnt 2>/dev/null; then
  # shellcheck disable=SC2016  # the inner shell expands it
  unshare -m bash -c 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"' bash \
    timeout --kill-after=5 60 mpirun --oversubscribe --bind-to none -np 2 "$folder/mpi_faults" shared waits \
    >"$work/out" 2>&1 || complain "a small /dev/shm: status $?"
  grep -q "without shared memory\|piece by piece" "$work/out" && complain "a small /dev/shm: no windows"
else
  echo "SKIP: /dev/shm stays as it is: this user makes no mount namespace"
fi

# fails WAY WHAT STATUS PATTERN: runs four ranks, of which rank 3 fails. The other ranks must report what they miss, and
# the job must end with STATUS.
fails() {
  local start=$SECONDS
  on 4 "$folder/mpi_faults" "$1" "$2"
  local status=$?
  [[ $status == "$3" ]] || complain "$1 $2: status $status and not $3"
  says "$4" "$1 $2"
  ((SECONDS - start < 30)) || complain "$1 $2: it took $((SECONDS - start)) s"
}
for way in plain shared hosts; do
  for what in sleeps stops; do
    fails $way $what 5 "step 12 bucket 3\] expected all ranks.* within the deadline, got no message from (rank 3|rank 2 on [^ ]+ for|.*rank 3) on"
  done
  fails $way aborts 3 "rank 3 on [^ ]+ ends the job: record 7 is damaged"
  [[ $(grep -c "ends the job" "$work/out") == 1 ]] || complain "$way aborts: not one line"
  fails $way throws 3 "record 7\] expected 3073 bytes"
  fails $way dies 137 "signal 9"
  # Another thread interrupts the waits long before the deadline. The processes end without the end of MPI.
  fails $way interrupted 75 "rank [0-3]: was interrupted"
  [[ $(grep -c "was interrupted" "$work/out") == 4 ]] || complain "$way interrupted: not all of them"
done
fails hosts host_stops 5 "step 12 bucket 3\] expected all ranks within the deadline, got no message from rank 2 on"
for way in plain shared hosts; do
  fails $way differs 5 "step 12 bucket 3\] expected the same operation on all ranks"
done

# A training step that breaks at any piece must leave the state before the step on all four ranks of two hosts.
pieces=1
for ((piece = 0; piece <= pieces; ++piece)); do
  rm -rf "$work/told" && mkdir "$work/told"
  on 4 "$folder/mpi_whole_steps" $piece "$work/told"
  status=$?
  [[ $status == 75 ]] || complain "a step broken at piece $piece: status $status and not 75"
  [[ $(grep -cE "rank [0-3]: whole" "$work/out") == 4 ]] || complain "a step broken at piece $piece: not whole everywhere"
  pieces=$(sed -n 's/^\([0-9]*\) pieces$/\1/p' "$work/out")
  [[ -n $pieces ]] || { complain "a step broken at piece $piece: no number of pieces" && break; }
done
((pieces > 3)) || complain "a step has only $pieces pieces"

# A waiting rank must let other processes use its core. The bound is generous, for machines under load.
for way in plain shared hosts; do
  on 4 "$folder/mpi_faults" $way waits || complain "$way waits: status $?"
  says "% of a core" "$way waits"
  if grep -oE "[0-9.]+ % of a core" "$work/out" | awk '$1 > 30 { bad = 1 } END { exit !bad }'; then
    complain "$way waits: it is not idle"
  fi
done

# No process may be left.
pgrep -f "$folder/mpi_" >/dev/null && complain "processes are left: $(pgrep -fa "$folder/mpi_")"
((failures == 0))
