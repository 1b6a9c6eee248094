# SPDX-License-Identifier: MIT
# Sourced by the scripts beside it: the hosts file and what runs on its hosts.
# A hosts file has a host per line, "name" or "name slots=4"; "#" begins a comment; blank lines and CRLF are fine.

say() { printf '%s\n' "$me: $*" >&2; }
usage() {
  printf 'usage: %s\n' "$*" >&2
  exit 1
}

# read_hosts FILE: fills the arrays hosts and slots. Anything that is no host is refused, because names end up on
# command lines.
read_hosts() {
  local file=$1 line number=0 name rest
  hosts=() slots=()
  [[ -r $file ]] || { say "[hosts] expected a hosts file, got nothing to read at $file." && exit 3; }
  while IFS= read -r line <&9 || [[ -n $line ]]; do
    number=$((number + 1))
    line=${line%$'\r'}
    line=${line%%#*}
    read -r name rest <<<"$line" || true
    [[ -n $name ]] || continue
    if ! [[ $name =~ ^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$ ]] || ! [[ $rest =~ ^(slots=[1-9][0-9]{0,4})?[[:space:]]*$ ]]; then
      say "[$file line $number] expected \"host\" or \"host slots=n\", got \"$line\"."
      exit 2
    fi
    rest=${rest%%[[:space:]]*}
    hosts+=("$name")
    slots+=("${rest#slots=}")
    [[ -n ${slots[-1]} ]] || slots[-1]=1
  done 9<"$file"
  ((${#hosts[@]} > 0)) || { say "[$file] expected at least one host, got none." && exit 2; }
}

# is_here NAME: is it this machine?
is_here() { [[ $1 == localhost || $1 == 127.0.0.1 || $1 == "$(hostname)" ]]; }

ssh_options=(-o StrictHostKeyChecking=accept-new -o BatchMode=yes -o ConnectTimeout="${CLUSTER_CONNECT_TIMEOUT:-15}")
