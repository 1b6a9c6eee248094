#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# docs/build.sh makes the site with the reference: Doxygen has nothing to complain about, and each class, function of a namespace and
# enumeration of the public headers says what it is.
set -euo pipefail
: "${TUTTI_SOURCE_DIR:?}"
if ! command -v doxygen >/dev/null; then
  echo "SKIP: no doxygen (Debian: apt-get install doxygen)"
  exit 77
fi
if ! python3 -c 'import markdown_it, pygments' 2>/dev/null && ! /usr/bin/python3 -c 'import markdown_it, pygments' 2>/dev/null; then
  echo "SKIP: no markdown_it and pygments (Debian: apt-get install python3-markdown-it python3-pygments)"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$TUTTI_SOURCE_DIR/docs/build.sh" "$work/site"
for file in index.html docs/tutorial/first-net.html reference/index.html reference/classtutti_1_1Trainer.html reference/namespacetutti_1_1nn.html; do
  [[ -s $work/site/$file ]] || { echo "the site has no $file" && exit 1; }
done
# The comments of the headers are in it.
grep -q 'Reads batches ahead' "$work/site/reference/classtutti_1_1Loader.html" || { echo "Loader's comment is not in the reference" && exit 1; }

# The page that the site's header leads to names what one meets first, and no escape of a comment is shown.
grep -q 'href="classtutti_1_1Checkpoints.html"' "$work/site/reference/index.html" || { echo "the reference has no main page" && exit 1; }
! grep -rlE --include='*.html' '&amp;#[0-9]+;' "$work/site/reference" | grep -v '_source\.html$' || { echo "escaped entities" && exit 1; }
grep -qE 'Images of \[channels, height, width\]|\[height, width' "$work/site/reference/classtutti_1_1EncodedImages.html" \
  "$work/site/reference/namespacetutti.html" || { echo "brackets of comments are not shown" && exit 1; }

# It refuses what it would destroy, and says so.
mkdir "$work/mine" && touch "$work/mine/file"
status=0
"$TUTTI_SOURCE_DIR/docs/build.sh" --pages "$work/mine" >"$work/log" 2>&1 || status=$?
[[ $status == 2 && -e $work/mine/file ]] || { echo "a folder of other files: status $status, $(cat "$work/log")" && exit 1; }
