#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# takes long
# docs/build.sh makes the site with the reference: Doxygen does not complain, and each class, function of a namespace and enumeration of
# the public headers has a comment.
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
# The reference contains the comments of the headers.
grep -q 'Reads batches ahead' "$work/site/reference/classtutti_1_1Loader.html" || { echo "Loader's comment is not in the reference" && exit 1; }

# The main page of the reference first names what a program uses. It has the style of the other pages and no visible
# escapes.
grep -q 'href="classtutti_1_1Checkpoints.html"' "$work/site/reference/index.html" || { echo "the reference has no main page" && exit 1; }
for file in index.html classtutti_1_1Trainer.html; do
  grep -q 'href="../site.css"' "$work/site/reference/$file" && grep -q 'id="search"' "$work/site/reference/$file" || {
    echo "reference/$file has no head like the other pages"
    exit 1
  }
done
grep -q '"url":"reference/classtutti_1_1Trainer.html"' "$work/site/search.js" || { echo "the search does not know Trainer" && exit 1; }
grep -qE '\[channels, height, width\]|\[height, width' "$work/site/reference/classtutti_1_1EncodedImages.html" \
  "$work/site/reference/namespacetutti.html" || { echo "brackets of comments are not shown" && exit 1; }

# docs/site/check.py, which can fail the build, finds what the reference lacks.
check=$TUTTI_SOURCE_DIR/docs/site/check.py
missed() {
  if python3 "$check" "$work/site" >"$work/log"; then echo "check.py does not see $1" && exit 1; fi
  grep -q "$2" "$work/log" || { echo "check.py: $1: $(cat "$work/log")" && exit 1; }
}
# docs/build.sh has checked the whole site. One page of the reference is enough to see complaints about it.
find "$work/site/reference" -name '*.html' ! -name index.html -delete
python3 "$check" "$work/site"
cp "$work/site/reference/index.html" "$work/kept"
sed -i 's/classtutti_1_1Loader.html/x.html/' "$work/site/reference/index.html" && missed "a main page without Loader" "no link to classtutti_1_1Loader"
sed 's/site.css/doxygen.css/' "$work/kept" >"$work/site/reference/index.html" && missed "another style" "another style"
sed 's/A program includes/\&amp;#91;/' "$work/kept" >"$work/site/reference/index.html" && missed "an escaped entity" "escaped entity"
rm "$work/site/reference/index.html" && missed "no main page" "no reference"

# The script refuses to overwrite a folder with other files, and prints the reason.
mkdir "$work/mine" && touch "$work/mine/file"
status=0
"$TUTTI_SOURCE_DIR/docs/build.sh" --pages "$work/mine" >"$work/log" 2>&1 || status=$?
[[ $status == 2 && -e $work/mine/file ]] || { echo "a folder of other files: status $status, $(cat "$work/log")" && exit 1; }
