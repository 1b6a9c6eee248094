# SPDX-License-Identifier: MIT
# Functions of the scripts of this folder. They source this file after `set -euo pipefail`, with $me, the name in messages.
# shellcheck shell=bash disable=SC2154
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)

say() { printf '%s: %s\n' "$me" "$*" >&2; }

# fail STATUS WHERE EXPECTED GOT [HINT]
fail() {
  say "[$2] expected $3, got $4.${5:+ hint: $5.}"
  exit "$1"
}

# need_value OPTION [VALUE]: ends the script if an option has no value.
need_value() { [[ -n ${2:-} ]] || fail 2 "$1" "a value after it" "no value"; }

# need_program PROGRAM PACKAGE [PURPOSE]: ends the script if this machine lacks a program, and names Debian's packages with it.
need_program() { command -v "$1" >/dev/null || fail 2 "$1" "the program${3:+, $3}" none "Debian: apt-get install $2"; }

# print_help: prints the comment at the beginning of the script that calls it.
print_help() { sed -n '3,/^set -/{/^set -/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[1]}"; }

# this_processor: prints the processor of this machine.
this_processor() { uname -m; }

# check_target PROCESSOR: ends the script if this machine cannot make packages for the processor.
check_target() {
  case "$(uname -sm)" in
    'Linux x86_64' | 'Linux aarch64') ;;
    *) fail 2 machine "Linux on x86_64 or aarch64" "$(uname -sm)" "make the archive on a machine with the processor of the hosts" ;;
  esac
  case "$(this_processor) $1" in
    'x86_64 x86_64' | 'aarch64 aarch64' | 'x86_64 aarch64') ;;
    'aarch64 x86_64') fail 2 --target "aarch64 on this machine" x86_64 "packages for x86_64 are made on a machine with that processor" ;;
    *) fail 2 --target "x86_64 or aarch64" "$1" ;;
  esac
}

# sysroot_of BUILD: prints the folder with the libraries of a build for another processor, and nothing for other builds.
sysroot_of() { sed -n 's/^TUTTI_SYSROOT:INTERNAL=//p' "$1/CMakeCache.txt"; }

version_of_tree() { sed -n 's/.*version = "\(.*\)";/\1/p' "$root/include/tutti/version.hpp"; }

# set_source_date: sets SOURCE_DATE_EPOCH, the time of all files in packages, as cmake/source_date.cmake does: the time of the
# last commit, and outside a clone 1 January 1980.
set_source_date() {
  local last=
  if [[ -z ${SOURCE_DATE_EPOCH:-} && -e $root/.git ]]; then last=$(git -C "$root" log -1 --format=%ct 2>/dev/null || true); fi
  export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-${last:-315532800}}
}

# same_for_all FOLDER: sets modes and times of all files in it, which the user's umask and the time of the build would set.
same_for_all() {
  chmod -R u+w,go-w,a+rX "$1"
  find "$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

# write_tar FOLDER NAME FILE: writes NAME of FOLDER as an archive. Identical files give an identical archive.
write_tar() {
  same_for_all "$1/$2"
  tar -C "$1" --format=gnu --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$2" | gzip -n -6 >"$3.new"
  mv "$3.new" "$3"
}
