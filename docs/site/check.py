#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Looks through a finished site for what a reader needs; docs/build.sh ends with it.

    check.py [--pages] OUT      --pages: the site has no reference

Each page needs the search, the contents of all pages and, from two sections on, of itself; links to the next and the previous page; a
copy button on each block of code. Links have titles as words, and no escaped entity is shown. The search index names every page.
The reference needs a main page with the classes that programs use, the same head and style, and entries in the search.
"""
import html
import json
import re
import sys
from pathlib import Path

ENTITY = re.compile(r"&amp;(?:#\d+|#x[0-9a-fA-F]+|amp|lt|gt|quot|apos|nbsp);")
MAIN_PAGE = ("classtutti_1_1Builder.html", "classtutti_1_1Trainer.html", "classtutti_1_1Loader.html", "classtutti_1_1Checkpoints.html")


def head_complaints(text):
    """The head that the pages and the reference share."""
    if 'class="site"' not in text or 'href="' not in text.partition("</header>")[0]:
        yield "no head"
    if 'id="search"' not in text or not re.search(r'<script src="[^"]*site\.js"', text):
        yield "no search"
    if not re.search(r'<link rel="stylesheet" href="[^"]*site\.css"', text):
        yield "another style than the other pages"


def page_complaints(text, listed, titles):
    """listed: the page is in the contents. titles: address of a page -> title."""
    yield from head_complaints(text)
    if '<nav class="pages"' not in text:
        yield "no contents of all pages"
    body = text.partition("<main>")[2].partition("</main>")[0]
    if len(re.findall(r"<h[23] id=", body)) >= 2 and '<nav class="sections"' not in text:
        yield "no contents of the page"
    if listed and not re.search(r'class="(next|previous)"', body):
        yield "no links to the next and the previous page"
    blocks, buttons = body.count("<pre>"), len(re.findall(r'<button class="copy"[^>]*>Copy</button><pre>', body))
    if blocks != buttons:
        yield f"{blocks} blocks of code, {buttons} copy buttons"
    for words in re.findall(r'<a href="[^"]*\.html[^"]*">([\w./-]+\.md)</a>', body):
        yield f"a link reads {words}, not a title"
    shown = re.sub(r"<pre>.*?</pre>|<code>.*?</code>", "", body, flags=re.S)
    for entity in set(ENTITY.findall(shown)):
        yield f"the escaped entity {html.unescape(entity)} is shown"
    if titles is not None and not re.search(r"<h1", body):
        yield "no title"


def site_complaints(out, with_reference):
    pages = [p for p in out.rglob("*.html") if "reference" not in p.relative_to(out).parts[:1]]
    index = out / "search.js"
    entries = json.loads(index.read_text().partition(" = ")[2].rstrip(";\n")) if index.is_file() else []
    found = {e["url"].partition("#")[0] for e in entries}
    listed = {(out / "docs" / href).resolve() for href in
              re.findall(r'<li[^>]*><a href="([^"#]+)"', (out / "docs" / "index.html").read_text().partition("<main>")[0])}
    for page in pages:
        text, name = page.read_text(), str(page.relative_to(out))
        if 'http-equiv="refresh"' in text:
            to = re.search(r"url=([^\"]+)", text)
            if not to or not (page.parent / to[1]).is_file():
                yield f"{name}: leads nowhere"
            continue
        source = name.startswith("source/")
        yield from (f"{name}: {c}" for c in page_complaints(text, page.resolve() in listed, None if source else {}))
        if not source and name not in found:
            yield f"{name}: the search does not know it"
    if not with_reference:
        return
    main = out / "reference" / "index.html"
    if not main.is_file():
        yield "reference/index.html: there is no reference"
        return
    for link in MAIN_PAGE:
        if f'href="{link}' not in main.read_text():
            yield f"reference/index.html: no link to {link}"
    if not any(url.startswith("reference/") for url in found):
        yield "search.js: no class of the reference"
    for page in (out / "reference").glob("*.html"):
        text, name = page.read_text(), str(page.relative_to(out))
        yield from (f"{name}: {c}" for c in head_complaints(text))
        if not name.endswith("_source.html") and re.search(r"&amp;#\d+;", text):
            yield f"{name}: an escaped entity is shown"


def main(arguments):
    with_reference = "--pages" not in arguments
    wrong = list(site_complaints(Path(arguments[-1]), with_reference))
    print("".join(f"{w}\n" for w in wrong[:50]) + f"docs/site/check.py: {len(wrong)} complaints")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
