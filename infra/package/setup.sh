#!/bin/sh
# SPDX-License-Identifier: MIT
# Sets the folder of this archive in its programs, and the C library that they use. In /opt/tutti the programs run without it.
#   setup.sh [--c-library own|host|newer]
# own    the archive's, as after unpacking. Works on every host that the archive supports.
# host   the host's, if it is at least as new as the archive's; otherwise the script fails.
# newer  the host's, if it is newer than the archive's: the libraries of a GPU or a network card there may have been built
#        with a newer one too.
# On a host with another processor than that of the programs it changes nothing and ends with status 4.
# It may run again, also after the folder was moved. Programs that run from here meanwhile keep their files.
set -eu
root=$(dirname "$(readlink -f "$0")")
about=$root/share/tutti/package/about
fail() {
  printf 'setup.sh: [%s] expected %s, got %s.%s\n' "$2" "$3" "$4" "${5:+ hint: $5.}" >&2
  exit "$1"
}
want=own
case $#:${1:-} in
  0:) ;;
  2:--c-library) want=$2 ;;
  1:--help | 1:-h) sed -n '3,/^set -/{/^set -/d;s/^# \{0,1\}//p;}' "$0" && exit 0 ;;
  *) fail 2 arguments 'none or --c-library own|host|newer' "$*" ;;
esac
case $want in own | host | newer) ;; *) fail 2 --c-library 'own, host or newer' "$want" ;; esac
[ -r "$about" ] || fail 3 "$about" 'the file' none 'unpack the archive again'
value() { sed -n "s/^$1 //p" "$about"; }
processor=$(value processor) machine=$(uname -m)
[ "${processor:-$machine}" = "$machine" ] ||
  fail 4 processor "$processor" "$machine" "take the archive for $machine, or make it with make_package.sh on this machine"
room=$(value room) own=$(value c_library) loader=$(value loader) folder=$(value loader_folder)
folder=${folder:-/lib64}
c=$root/lib/tutti/c
unused=$root/lib/tutti/c.unused

# at_least A B: succeeds if version A is B or later.
at_least() {
  [ "$1" = "$2" ] || [ "$(printf '%s\n%s\n' "$1" "$2" | sort -t . -k 1,1n -k 2,2n | head -n 1)" = "$2" ]
}
host=none
if [ -x "$folder/$loader" ]; then
  host=$("$folder/$loader" --version 2>/dev/null | sed -n '1s/.* \([0-9.]*[0-9]\)\.*$/\1/p')
  if [ -z "$host" ]; then host=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed -n 's/^glibc //p'); fi
  host=${host:-none}
fi
case $want in
  host)
    if [ "$host" = none ] || ! at_least "$host" "$own"; then
      fail 2 --c-library "a C library of the host, $own or later" "$host" "take its own: setup.sh --c-library own"
    fi
    ;;
  newer)
    want=own
    if [ "$host" != none ] && [ "$host" != "$own" ] && at_least "$host" "$own"; then want=host; fi
    ;;
esac
if [ "$want" = own ]; then path=$c/$loader; else path=$folder/$loader; fi
[ "${#path}" -le "$room" ] || fail 2 "$root" "a path of at most $((room - ${#path} + ${#root})) characters" "${#root}" 'unpack it elsewhere'

[ "$want" = host ] || [ ! -d "$unused" ] || mv "$unused" "$c"
while read -r at file; do
  cp -p "$root/$file" "$root/$file.new"
  { printf '%s' "$path" && head -c $((room + 1 - ${#path})) /dev/zero; } |
    dd of="$root/$file.new" bs=1 seek="$at" conv=notrunc 2>/dev/null
  mv -f "$root/$file.new" "$root/$file"
done <"$root/share/tutti/package/interpreters"
[ "$want" = own ] || [ ! -d "$c" ] || mv "$c" "$unused"
"$root/bin/tutti-launch" --help >/dev/null || fail 1 tutti-launch 'the program to run' "exit code $?"
echo "setup.sh: $root runs with the C library $([ "$want" = own ] && echo "$own of the archive" || echo "$host of the host")"
