# SPDX-License-Identifier: MIT
# The tests of this folder source this file after `set -euo pipefail`, with the name of the program. It makes a scratch
# folder $work, which becomes the working folder, sets $program to the path of the program, and defines common
# functions. The tests end with `finish`.
# shellcheck shell=bash
program=${TUTTI_BUILD_DIR:?}/examples/$1
if [[ ! -x $program ]]; then
  echo "SKIP: no $program; the examples or CLI11 are missing"
  exit 77
fi
unset TUTTI_DATA
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

complain() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}
# expect STATUS TEXT ARGUMENT...: checks that the program ends with the status and prints the text.
expect() {
  local status=$1 text=$2 got=0
  shift 2
  "$program" "$@" >out 2>&1 || got=$?
  [[ $got == "$status" ]] || complain "$*: status $got instead of $status: $(tail -n 3 out)"
  grep -qF -e "$text" out || complain "$*: no '$text' in: $(tail -n 3 out)"
}
# key FOLDER EVENT NAME: prints the values of the key NAME in the log's lines of an event.
key() { sed -n "/\"event\":\"$2\"/s/.*\"$3\":\([^,}]*\).*/\1/p" "$1/log.jsonl"; }

finish() {
  ((failures == 0)) || exit 1
  echo "all good"
}
