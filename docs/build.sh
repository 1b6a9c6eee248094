#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes the pages and the reference of every header as one site: docs/build.sh [OUT]
# OUT is build/site, or another folder, which is made anew; open OUT/index.html, which needs no server. Debian's doxygen,
# python3-markdown-it and python3-pygments are installed where they are missing. A minute. Ends with 1 where a link leads nowhere,
# or where Doxygen complains: about a comment, or a class or function of tutti's namespaces that has none.
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
# Debian's packages are those of its own Python, which need not be the first one here.
python=python3
"$python" -c 'import markdown_it, pygments' 2>/dev/null || python=/usr/bin/python3
if ! "$python" -c 'import markdown_it, pygments' 2>/dev/null || { [[ $pages_only == no ]] && ! command -v doxygen >/dev/null; }; then
  source "$root/.ci/common.sh"
  install python3-markdown-it python3-pygments doxygen
fi

mkdir -p "$out"
find "$out" -mindepth 1 -maxdepth 1 -exec rm -rf {} +
"$python" "$root/docs/site/pages.py" "$out"
[[ $pages_only == no ]] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(sed -n 's/.*version = "\([^"]*\)".*/\1/p' "$root/include/tutti/version.hpp")
doxygen -l "$work/layout.xml"
sed -i 's|<navindex>|<navindex><tab type="user" url="../../docs/index.html" title="Pages"/>|' "$work/layout.xml"
{
  cat "$root/docs/site/Doxyfile"
  printf '%s = %s\n' PROJECT_NUMBER "$version" OUTPUT_DIRECTORY "$out" HTML_OUTPUT reference WARN_LOGFILE "$work/warnings" \
    LAYOUT_FILE "$work/layout.xml"
} >"$work/Doxyfile"
(cd "$root" && doxygen "$work/Doxyfile")
# What a member is, its name and type say most of the time; classes, functions of namespaces and enumerations say it themselves.
grep -vE ': warning: Member .* of (class|struct|union) .* is not documented|: warning: Member .*\((variable|typedef|macro definition|friend)\)' \
  "$work/warnings" | sed "s|^$root/||" >"$work/wrong" || true
if [[ -s $work/wrong ]]; then
  cat "$work/wrong"
  echo "$me: $(wc -l <"$work/wrong") complaints of Doxygen" >&2
  exit 1
fi
# Doxygen says nothing of a comment whose escapes it prints as they are, nor of a main page without contents.
if grep -rlE --include='*.html' '&amp;#[0-9]+;' "$out/reference" | grep -v '_source\.html$' >"$work/escapes"; then
  sed "s|^|$me: an escaped entity in |" "$work/escapes" >&2
  exit 1
fi
for link in classtutti_1_1Builder.html classtutti_1_1Trainer.html classtutti_1_1Loader.html; do
  grep -qF "href=\"$link" "$out/reference/index.html" || {
    echo "$me: expected a link to $link on the reference's main page, got none" >&2
    exit 1
  }
done
echo "$me: $out/index.html"
