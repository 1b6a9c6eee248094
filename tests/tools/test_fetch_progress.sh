#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# waits
# Tests a download without a terminal: it prints its progress, keeps its exit code, and leaves no process behind.
set -euo pipefail
me=fetch
source "${TUTTI_SOURCE_DIR:?}/datasets/fetch.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "$*"
  exit 1
}
progress_every=1

grows() {
  head -c 3000000 /dev/zero >"$1"
  # Waits until the server has the request.
  for _ in {1..600}; do
    if grep -q . "$work/said"; then break; fi
    sleep 0.1
  done
  return "$2"
}
for want in 0 3; do
  : >"$work/said"
  code=0
  with_progress "$work/archive.tar.part" grows "$work/archive.tar.part" "$want" 2>"$work/said" || code=$?
  [[ $code == "$want" ]] || fail "it ends with $code, not $want"
  grep -qx "fetch: 3 MB of archive.tar so far" "$work/said" || fail "it says: $(cat "$work/said")"
done
: >"$work/said"
with_progress "$work/none.part" true 2>"$work/said"
[[ ! -s $work/said ]] || fail "a short one says: $(cat "$work/said")"

# After the script was killed, a reader of its output must not wait for long.
cat >"$work/script" <<END
me=fetch
source "$TUTTI_SOURCE_DIR/datasets/fetch.sh"
with_progress "$work/none.part" sleep 1000
END
bash "$work/script" 2>&1 | cat >/dev/null &
reader=$!
for _ in {1..600}; do
  script=$(pgrep -f "bash $work/script" | head -n 1 || true)
  if [[ -n $script ]] && pgrep -P "$script" sleep >/dev/null; then break; fi
  sleep 0.1
done
sleeper=$(pgrep -P "$script" -f "sleep 1000")
kill -9 "$script"
kill "$sleeper"
wait "$reader" 2>/dev/null || true
