#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes the pages and the reference of every header as one site: docs/build.sh [OUT]
# OUT is build/site or another folder, which is made again; open OUT/index.html, which needs no server. Installs Debian's doxygen,
# python3-markdown-it and python3-pygments if they are missing. Takes a minute. Ends with 1 if a link is broken, if Doxygen complains
# (about a comment, or about a class or function of tutti's namespaces without one), or if docs/site/check.py misses something.
#   --pages    the pages alone, in a second
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
me=docs/build.sh
pages_only=no
if [[ ${1:-} == --pages ]]; then
  pages_only=yes
  shift
fi
out=${1:-$root/build/site}
case $out in -*) echo "usage: docs/build.sh [--pages] [OUT]" >&2 && exit 2 ;; esac
if [[ -e $out && ! -e $out/site.css && -n $(ls -A "$out") ]]; then
  echo "$me: [OUT] expected a folder that is new, empty or a site, got $out" >&2
  exit 2
fi
# Debian's packages are for its own Python, which need not be the first one in PATH.
python=python3
"$python" -c 'import markdown_it, pygments' 2>/dev/null || python=/usr/bin/python3
if ! "$python" -c 'import markdown_it, pygments' 2>/dev/null || { [[ $pages_only == no ]] && ! command -v doxygen >/dev/null; }; then
  source "$root/.ci/common.sh"
  install python3-markdown-it python3-pygments doxygen
fi

mkdir -p "$out"
find "$out" -mindepth 1 -maxdepth 1 -exec rm -rf {} +
"$python" "$root/docs/site/pages.py" "$out"
if [[ $pages_only == yes ]]; then
  "$python" "$root/docs/site/check.py" --pages "$out"
  exit
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(sed -n 's/.*version = "\([^"]*\)".*/\1/p' "$root/include/tutti/version.hpp")
"$python" "$root/docs/site/pages.py" --header ../ >"$work/head"
sed -e "/@HEADER@/{s/@HEADER@//;r $work/head" -e '}' "$root/docs/site/reference_header.html" >"$work/header.html"
{
  cat "$root/docs/site/Doxyfile"
  printf '%s = %s\n' PROJECT_NUMBER "$version" OUTPUT_DIRECTORY "$out" HTML_OUTPUT reference WARN_LOGFILE "$work/warnings" \
    HTML_HEADER "$work/header.html" GENERATE_TAGFILE "$work/tags.xml"
  # Doxygen starts it for each header, so it starts without the user's modules, and not through another program.
  printf 'FILTER_PATTERNS = "*.hpp=%s -IS docs/site/comments.py"\n' "$("$python" -c 'import sys; print(sys.executable)')"
} >"$work/Doxyfile"
(cd "$root" && doxygen "$work/Doxyfile")
# A member's name and type are mostly enough; classes, functions of namespaces and enumerations need a comment.
grep -vE ': warning: Member .* of (class|struct|union) .* is not documented|: warning: Member .*\((variable|typedef|macro definition|friend)\)' \
  "$work/warnings" | sed "s|^$root/||" >"$work/wrong" || true
if [[ -s $work/wrong ]]; then
  cat "$work/wrong"
  echo "$me: $(wc -l <"$work/wrong") complaints of Doxygen" >&2
  exit 1
fi
"$python" "$root/docs/site/pages.py" --index "$out" "$work/tags.xml"
"$python" "$root/docs/site/check.py" "$out"
echo "$me: $out/index.html"
