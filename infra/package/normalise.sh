#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Writes packages of cpack again, so that equal contents give equal bytes: sorted entries, root as the owner, fixed modes, and
# SOURCE_DATE_EPOCH as the time of each file. cpack runs it on each package that it has made.
#   normalise.sh FILE...    .deb or .tar.gz
set -euo pipefail
me=normalise.sh
# shellcheck source=common.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/common.sh"
(($#)) || fail 2 arguments "packages" none
set_source_date
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for file in "$@"; do
  [[ -f $file ]] || fail 3 "$file" "a package" "no such file"
  rm -rf "$work/in"
  mkdir "$work/in"
  case $file in
    *.deb)
      dpkg-deb -R "$file" "$work/in/package"
      LC_ALL=C sort -k 2 -o "$work/in/package/DEBIAN/md5sums" "$work/in/package/DEBIAN/md5sums"
      same_for_all "$work/in/package"
      dpkg-deb --root-owner-group -Zgzip -z6 -b "$work/in/package" "$work/new" >/dev/null
      mv "$work/new" "$file"
      ;;
    *.tar.gz)
      tar -xzf "$file" -C "$work/in" --no-same-owner
      names=("$work"/in/*)
      [[ ${#names[@]} == 1 ]] || fail 3 "$file" "an archive of one folder" "${#names[@]} entries"
      write_tar "$work/in" "$(basename "${names[0]}")" "$file"
      ;;
    *) fail 2 "$file" "a file .deb or .tar.gz" "another name" ;;
  esac
done
