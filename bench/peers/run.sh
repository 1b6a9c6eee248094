#!/bin/sh
# SPDX-License-Identifier: MIT
# Trains the same nets with libtorch and with tutti, in turns (A B A B), and prints the medians side by side. libtorch
# runs twice in each turn: as it is, and ("kept") with a malloc that keeps freed memory, since libtorch frees and
# allocates every activation in every step, and glibc would return them to the system and fault them in again.
usage() {
  cat <<'EOF'
usage: bench/peers/run.sh [--models "resnet20:128 resnet18:64"] [--precisions "f32 bf16"] [--threads "2 1 busy"]
                          [--seconds 5] [--repeats 3] [--backend auto]

  --models     MODEL:BATCH; resnet20, resnet18 (both CIFAR) or resnet50 (224x224)
  --threads    numbers of threads; "busy" is one thread per core with a competing process on the first core
  --seconds    length of each run; --repeats: runs of each program
  --backend    tutti's backend

TUTTI_STEP     tutti's program (default: build/bench/tutti_step)
PEERS_BUILD    where libtorch's program is built (default: build/peers)
PEERS_NICE     priority of the measurement against everything else on the machine, -20 to 19 (below 0 needs root).
               libtorch's waiting threads spin: on a machine that is not idle its numbers mean nothing without it.
PEERS_LOCK     a file that is locked during each turn
EOF
}

set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
models="resnet20:128 resnet18:64" precisions="f32 bf16" threads="$(nproc) 1 busy" seconds=5 repeats=3 backend=auto
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --models | --precisions | --threads | --seconds | --repeats | --backend)
      [ $# -gt 1 ] || { echo "run.sh: a value is missing after $1" >&2; exit 2; }
      eval "${1#--}=\$2"
      shift 2 ;;
    *) echo "run.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
done
step=${TUTTI_STEP:-$root/build/bench/tutti_step}
build=${PEERS_BUILD:-$root/build/peers}

# Nice values count only inside a session's scheduling group; the group's own weight is what counts outside.
if [ -n "${PEERS_NICE:-}" ] && [ -z "${PEERS_OWN_GROUP:-}" ]; then
  export PEERS_OWN_GROUP=1
  exec setsid -w "$0" --models "$models" --precisions "$precisions" --threads "$threads" --seconds "$seconds" \
    --repeats "$repeats" --backend "$backend"
fi

[ -x "$step" ] || { echo "run.sh: no $step; build tutti's benchmarks, or set TUTTI_STEP" >&2; exit 3; }
if ! dpkg -s libtorch-dev >/dev/null 2>&1; then
  sudo=
  [ "$(id -u)" = 0 ] || sudo="sudo -n"
  { $sudo apt-get update && $sudo apt-get install -y --no-install-recommends libtorch-dev; } >/dev/null 2>&1 || {
    echo "run.sh: skipped, libtorch-dev cannot be installed (apt-get install libtorch-dev failed)"
    exit 77
  }
fi
mkdir -p "$(dirname "$build")"
{ cmake -S "$here" -B "$build" && cmake --build "$build"; } >"$build.log" 2>&1 || {
  tail -n 30 "$build.log" >&2
  echo "run.sh: the libtorch program did not build; all messages are in $build.log" >&2
  exit 1
}
if [ -n "${PEERS_NICE:-}" ]; then
  { echo "$PEERS_NICE" >/proc/self/autogroup; } 2>/dev/null || renice -n "$PEERS_NICE" $$ >/dev/null
fi

results=$(mktemp)
competitor=
finish() {
  [ -z "$competitor" ] || kill "$competitor" 2>/dev/null || :
  rm -f "$results" "$results.err"
}
trap finish EXIT
trap 'exit 130' INT TERM

# One run: "CASE WHICH IMAGES/S MIB SYSTEM" as a line of $results. $1: the case, $2: which of the programs.
run() {
  key="$1 $2"
  shift 2
  json=$("$@" 2>"$results.err") || { cat "$results.err" >&2; echo "run.sh: failed: $*" >&2; exit 1; }
  rm -f "$results.err"
  line=$(echo "$json" | sed -n \
    's/.*"system": *"\([^"]*\)".*"images_per_second": *\([0-9.]*\).*"peak_rss_mib": *\([0-9.]*\).*/\2 \3 \1/p')
  [ -n "$line" ] || { echo "run.sh: not the expected line from $*: $json" >&2; exit 1; }
  echo "$key $line" | tee -a "$results" >&2
}

turn() {
  label=$1
  set -- --model "$2" --batch "$3" --precision "$4" --threads "$5" --seconds "$seconds"
  run "$label" libtorch "$build/torch_resnet" "$@"
  run "$label" kept env MALLOC_TRIM_THRESHOLD_=1000000000 MALLOC_MMAP_THRESHOLD_=1000000000 "$build/torch_resnet" "$@"
  run "$label" tutti "$step" "$@" --backend "$backend"
}

for model in $models; do
  for precision in $precisions; do
    for count in $threads; do
      for repeat in $(seq "$repeats"); do
        echo "$model $precision, $count: $repeat of $repeats" >&2
        exec 9>"${PEERS_LOCK:-/dev/null}"
        [ -z "${PEERS_LOCK:-}" ] || flock 9
        if [ "$count" = busy ]; then
          taskset -c 0 sh -c 'while :; do :; done' 9>&- &
          competitor=$!
          turn "$model/$precision/$count" "${model%:*}" "${model#*:}" "$precision" "$(nproc)"
          kill "$competitor"
          wait "$competitor" 2>/dev/null || :
          competitor=
        else
          turn "$model/$precision/$count" "${model%:*}" "${model#*:}" "$precision" "$count"
        fi
        exec 9>&-
      done
    done
  done
done

awk '
  function median(key, column,   i, j, n, t, v) {
    n = count[key]
    for (i = 1; i <= n; ++i) v[i] = value[key, i, column]
    for (i = 2; i <= n; ++i)
      for (j = i; j > 1 && v[j - 1] > v[j]; --j) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
    return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
  }
  {
    if (!($1 in seen)) { seen[$1] = 1; order[++cases] = $1 }
    key = $1 " " $2
    ++count[key]
    value[key, count[key], 1] = $3
    value[key, count[key], 2] = $4
    system_name[$2] = $5
    for (i = 6; i <= NF; ++i) system_name[$2] = system_name[$2] " " $i
  }
  END {
    printf "%s against %s; medians of images per second and of peak resident MiB\n\n", system_name["tutti"], \
      system_name["libtorch"]
    printf "| model    | batch | type | threads | libtorch |     kept |    tutti | /libtorch | /kept | libtorch MiB |"
    print " kept MiB | tutti MiB | /libtorch |"
    print "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    for (i = 1; i <= cases; ++i) {
      split(order[i], part, /[:\/]/)
      a = order[i] " libtorch"
      k = order[i] " kept"
      b = order[i] " tutti"
      printf "| %-8s | %5d | %-4s | %-7s | %8.1f | %8.1f | %8.1f | %9.2f | %5.2f | %12.0f | %8.0f | %9.0f | %9.2f |\n", \
        part[1], part[2], part[3], part[4], median(a, 1), median(k, 1), median(b, 1), median(b, 1) / median(a, 1), \
        median(b, 1) / median(k, 1), median(a, 2), median(k, 2), median(b, 2), median(b, 2) / median(a, 2)
    }
  }' "$results"
