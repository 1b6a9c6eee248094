# SPDX-License-Identifier: MIT
# Functions for the hosts file and for commands on its hosts. The scripts next to it source it.
# A hosts file has one host per line, [USER@]NAME[:PORT] [slots=N], as for tutti-launch: an IPv6 address is written in
# brackets, "#" begins a comment, blank lines and CRLF are allowed, and a repeated line counts once.

say() { printf '%s\n' "$me: $*" >&2; }
usage() {
  printf 'usage: %s\n' "$*" >&2
  exit 1
}

# is_name TEXT: letters, digits, ".", "_" and "-", the first one a letter or a digit, so that it cannot be an option.
is_name() {
  local LC_ALL=C
  [[ $1 =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] && ((${#1} <= 253))
}
# is_ipv6 TEXT: eight groups, or fewer with one "::"; the last two may be an IPv4 address; %INTERFACE may follow.
is_ipv6() {
  local LC_ALL=C text=$1 group groups count=0 four='(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])'
  if [[ $text == *%* ]]; then
    is_name "${text#*%}" || return
    text=${text%%%*}
  fi
  if [[ $text =~ ^(.*:)$four\.$four\.$four\.$four$ ]]; then text=${BASH_REMATCH[1]}0:0; fi
  [[ $text =~ ^[0-9A-Fa-f:]+$ && $text != *:::* && $text != *::*::* ]] || return
  [[ ($text != :* || $text == ::*) && ($text != *: || $text == *::) ]] || return
  IFS=: read -ra groups <<<"$text"
  for group in "${groups[@]}"; do
    ((${#group} <= 4)) || return
    [[ -z $group ]] || count=$((count + 1))
  done
  if [[ $text == *::* ]]; then ((count <= 7)); else ((count == 8)); fi
}

# read_host WORD: sets user, name and port; those that WORD lacks are empty.
read_host() {
  local LC_ALL=C word=$1 bracket='^\[([^]]*)\](:([0-9]+))?$' plain='^([^]:[]+)(:([0-9]+))?$'
  user=
  if [[ $word == *@* ]]; then
    user=${word%%@*} word=${word#*@}
    is_name "u$user" && ((${#user} <= 64)) && [[ $user != [.-]* && -n $user ]] || return
  fi
  if [[ $word =~ $bracket ]]; then
    is_ipv6 "${BASH_REMATCH[1]}" || return
    [[ $word =~ $bracket ]]
  else
    [[ $word =~ $plain ]] && is_name "${BASH_REMATCH[1]}" || return
    [[ $word =~ $plain ]]
  fi
  name=${BASH_REMATCH[1]} port=${BASH_REMATCH[3]}
  [[ -z ${BASH_REMATCH[2]} ]] || ((${#port} <= 5 && 10#$port >= 1 && 10#$port <= 65535)) || return
  [[ -z $port ]] || port=$((10#$port))
}

# read_hosts FILE: fills the arrays hosts, users, ports and slots. Anything that is not a host is refused, because names
# are used on command lines.
read_hosts() {
  local file=$1 line number=0 said words word user name port count
  declare -A seen=()
  hosts=() users=() ports=() slots=()
  [[ -r $file ]] || { say "[hosts] expected a hosts file, got no readable file at $file." && exit 3; }
  bad() {
    say "[$file line $number] expected $1, got \"$line\"."
    exit 2
  }
  while IFS= read -r line <&9 || [[ -n $line ]]; do
    number=$((number + 1))
    line=${line%$'\r'}
    words=()
    IFS=$' \t' read -ra said <<<"$line" || true
    for word in "${said[@]}"; do
      [[ $word != '#'* ]] || break
      words+=("$word")
    done
    ((${#words[@]} > 0)) || continue
    read_host "${words[0]}" && ((${#words[@]} <= 2)) || bad '"[USER@]NAME[:PORT]" or that and "slots=n"'
    count=1
    if ((${#words[@]} == 2)); then
      [[ ${words[1]} =~ ^slots=([0-9]{1,9})$ ]] || bad '"slots=n" after the host'
      count=$((10#${BASH_REMATCH[1]}))
      ((count >= 1 && count <= 4096)) || bad '"slots=n", n from 1 to 4096,'
    fi
    if [[ -n ${seen[$name]:-} ]]; then
      [[ ${seen[$name]} == "$user $port $count" ]] || bad "another host, or $name as it was named above"
      continue
    fi
    seen[$name]="$user $port $count"
    hosts+=("$name") users+=("$user") ports+=("$port") slots+=("$count")
  done 9<"$file"
  ((${#hosts[@]} > 0)) || { say "[$file] expected at least one host, got no host." && exit 2; }
}

# is_here INDEX: succeeds if that host is this machine, which needs no ssh.
is_here() {
  local name=${hosts[$1]} address
  [[ -z ${ports[$1]} && (-z ${users[$1]} || ${users[$1]} == "$(id -un)") ]] || return
  [[ $name != localhost && $name != 127.0.0.1 && $name != ::1 && $name != "$(hostname)" ]] || return 0
  # A name server that does not answer must not delay it for long.
  address=$(timeout 3 getent ahosts "$name" 2>/dev/null | head -n 1) || return
  [[ -n $address && " $(hostname -I 2>/dev/null) 127.0.0.1 ::1 " == *" ${address%% *} "* ]]
}

# The same rules as tutti-launch: ssh asks for no password, a new host is trusted, a host with a changed key is not,
# and the agent and X11 are not forwarded.
ssh_options=(-o BatchMode=yes -o StrictHostKeyChecking=accept-new -o ForwardAgent=no -o ForwardX11=no
  -o ClearAllForwardings=yes -o ConnectTimeout="${CLUSTER_CONNECT_TIMEOUT:-15}")
# ssh_of INDEX: sets the array ssh, the command up to the host's name.
ssh_of() {
  ssh=(ssh "${ssh_options[@]}")
  [[ -z ${ports[$1]} ]] || ssh+=(-p "${ports[$1]}")
  [[ -z ${users[$1]} ]] || ssh+=(-l "${users[$1]}")
}
