# SPDX-License-Identifier: MIT
# Functions of the prepare scripts; sourced by them, after `set -euo pipefail` and with $me, the name for messages.
# shellcheck shell=bash disable=SC2154

say() { printf '%s: %s\n' "$me" "$*" >&2; }
die() {
  local code=$1
  shift
  say "$*"
  exit "$code"
}

sha256_of() { sha256sum -- "$1" | cut -d' ' -f1; }

# Prints a curl configuration, e.g. a name and a password; a script that needs one defines it after sourcing this. It
# goes through a pipe: the words of a command line are seen by everybody.
curl_config() { :; }

# While a command runs that shows no progress itself, says from time to time how much there is: with_progress FILE COMMAND...
progress_every=30 # seconds
with_progress() {
  local part=$1 code=0 watcher
  shift
  if [[ -t 2 ]] || ! { command -v curl || command -v wget; } >/dev/null; then
    "$@"
    return
  fi
  (
    # It looks every second whether this script is still there, whose output it holds.
    seconds=0
    while sleep 1 >/dev/null 2>&1 && kill -0 "$$" 2>/dev/null; do
      ((++seconds % progress_every)) ||
        say "$(($(stat -c %s -- "$part" 2>/dev/null || echo 0) / 1000000)) MB of $(basename -- "${part%.part}") so far"
    done
  ) </dev/null &
  watcher=$!
  "$@" || code=$?
  # So hard that it cannot run a trap of this script, which it has until it has begun.
  kill -KILL "$watcher" 2>/dev/null || true
  wait "$watcher" 2>/dev/null || true
  return "$code"
}

# Exit codes that both downloaders are reduced to: 0 all there, 1 the transfer broke off, 2 refused by the server,
# 3 the server cannot go on in the middle.
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

# download URL FILE: FILE.part becomes FILE when it is complete. Goes on where an earlier call stopped, and tries again
# for as long as a broken transfer brings something.
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
      2) if ((after > before)); then  # a page that says why, and no data
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
    ((after > 0)) && say "the $after bytes so far are kept; run the same command again to go on"
    return 1
  done
}

# fetch URL FILE SHA256: a FILE with that checksum, or an error. Whatever has another checksum is removed.
fetch() {
  local url=$1 file=$2 want=$3 got
  # A download that was complete when it was interrupted, and one that is complete already.
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

# One prepare at a time in a folder.
lock() {
  command -v flock >/dev/null || return 0
  exec 9>"$1/.prepare.lock"
  flock 9
}
