# SPDX-License-Identifier: MIT
# Functions of the prepare scripts. A script sources this file after `set -euo pipefail` and after it has set $me, the
# name in messages.
# shellcheck shell=bash disable=SC2154

say() { printf '%s: %s\n' "$me" "$*" >&2; }
die() {
  local code=$1
  shift
  say "$*"
  exit "$code"
}

sha256_of() { sha256sum -- "$1" | cut -d' ' -f1; }

# Prints a curl configuration, e.g. a name and a password. A script that needs one defines this function after sourcing
# this file. The text goes through a pipe, because all users of the machine can see the words of a command line.
curl_config() { :; }

# Prints the size of FILE from time to time while a command runs that shows no progress itself: with_progress FILE
# COMMAND...
progress_every=30 # seconds
with_progress() {
  local part=$1 code=0 watcher
  shift
  if [[ -t 2 ]] || ! { command -v curl || command -v wget; } >/dev/null; then
    "$@"
    return
  fi
  (
    # Checks every second whether this script still runs, because this process holds the script's output open.
    seconds=0
    while sleep 1 >/dev/null 2>&1 && kill -0 "$$" 2>/dev/null; do
      ((++seconds % progress_every)) ||
        say "$(($(stat -c %s -- "$part" 2>/dev/null || echo 0) / 1000000)) MB of $(basename -- "${part%.part}") so far"
    done
  ) </dev/null &
  watcher=$!
  "$@" || code=$?
  # SIGKILL: until the subshell has begun, it has the traps of this script and a milder signal would run them.
  kill -KILL "$watcher" 2>/dev/null || true
  wait "$watcher" 2>/dev/null || true
  return "$code"
}

# Reduces the exit codes of both downloaders to: 0 complete, 1 the transfer was interrupted, 2 the server refused, 3 the
# server cannot continue in the middle.
download_once() {
  local url=$1 part=$2 code=0 status
  if command -v curl >/dev/null; then
    local progress=(-sS)
    [[ -t 2 ]] && progress=(-#)
    status=$(curl "${progress[@]}" -L --fail --proto-redir =https,http --connect-timeout 20 --speed-limit 1 \
      --speed-time 60 -C - -o "$part" -K <(curl_config) -w '%{http_code}' -- "$url") || code=$?
    case $code:$status in
      0:200 | 0:206) return 0 ;;
      0:*) say "HTTP status $status for $url" && return 2 ;;
      33:* | *:416) return 3 ;;
      22:*) say "HTTP status $status for $url" && return 2 ;;
      6:* | 7:*) return 2 ;;
      *) return 1 ;;
    esac
  elif command -v wget >/dev/null; then
    status=$(wget -nv -S -c -t 1 -T 60 -O "$part" -- "$url" 2>&1 >/dev/null) || code=$?
    status=$(sed -n 's|^ *HTTP/[0-9.]* \([0-9]*\).*|\1|p' <<<"$status" | tail -n 1)
    case $code:$status in
      0:200 | 0:206) return 0 ;;
      *:416) return 3 ;;
      4:20[06] | 4:) [[ -n $status ]] && return 1 || return 2 ;;
      *) say "HTTP status ${status:-none} for $url" && return 2 ;;
    esac
  fi
  die 3 "neither curl nor wget is installed (apt-get install curl)"
}

# download URL FILE: FILE.part becomes FILE when it is complete. Continues an earlier download, and tries again as long
# as each broken transfer brings some bytes.
download() {
  local url=$1 part=$2.part before after code restarted=no
  while :; do
    before=$(stat -c %s -- "$part" 2>/dev/null || echo 0)
    code=0
    with_progress "$part" download_once "$url" "$part" || code=$?
    after=$(stat -c %s -- "$part" 2>/dev/null || echo 0)
    case $code in
      0) mv -- "$part" "$2" && return 0 ;;
      1) ((after > before)) && continue ;;
      2) if ((after > before)); then  # a page that gives the reason, not data
        rm -f -- "$part"
        after=0
      fi ;;
      3) if [[ $restarted == no ]]; then
        restarted=yes
        rm -f -- "$part"
        continue
      fi ;;
    esac
    say "could not fetch $url"
    ((after == 0)) && rm -f -- "$part"
    ((after > 0)) && say "the $after bytes so far are kept; run the same command again to continue"
    return 1
  done
}

# fetch URL FILE SHA256: makes a FILE with that checksum or fails. Removes a file that has another checksum.
fetch() {
  local url=$1 file=$2 want=$3 got
  # The file may be complete already: from an earlier run, or from a run that was interrupted after the last byte.
  if [[ -f $file.part && $(sha256_of "$file.part") == "$want" ]]; then mv -- "$file.part" "$file"; fi
  if [[ -f $file && $(sha256_of "$file") == "$want" ]]; then return 0; fi
  rm -f -- "$file"
  say "fetching $url"
  download "$url" "$file" || return 1
  got=$(sha256_of "$file")
  if [[ $got != "$want" ]]; then
    rm -f -- "$file"
    say "wrong checksum for $url: expected SHA-256 $want, got $got"
    return 1
  fi
}

# Only one prepare at a time works in a folder.
lock() {
  command -v flock >/dev/null || return 0
  exec 9>"$1/.prepare.lock"
  flock 9
}
