#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the pages of the site from the Markdown of the tree; docs/build.sh calls it.

    pages.py OUT               the pages, their search index and the redirects of old addresses
    pages.py --header UP       the head of every page, which the reference takes too; UP leads to the root, such as ../
    pages.py --index OUT TAGS  adds the classes and functions of Doxygen's tag file to the search index

A page a.md becomes a.html. Source files and folders that a page links to become pages under source/. A broken link ends it with 1.
Needs python3-markdown-it and python3-pygments, as Debian has them.
"""
import html
import json
import os
import re
import shutil
import sys
import xml.etree.ElementTree
from pathlib import Path

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_by_name, get_lexer_for_filename
from pygments.util import ClassNotFound

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
HEADER = """<header class="site"><a class="name" href="{up}index.html">tutti</a><span class="version">{version}</span>
<a href="{up}docs/index.html">Pages</a> <a href="{up}reference/index.html">Reference</a>
<div class="search" role="search"><input id="search" type="search" placeholder="Search (press /)" aria-label="Search all pages"
data-up="{up}"><div id="hits" hidden></div></div></header>"""
TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><meta name="description" content="{about}">
<meta property="og:title" content="{title}"><meta property="og:description" content="{about}"><meta property="og:type" content="website">
<link rel="icon" type="image/svg+xml" href="{up}favicon.svg"><link rel="stylesheet" href="{up}site.css"></head>
<body>{header}
<div class="columns"><nav class="pages" aria-label="All pages"><details><summary>All pages</summary>{nav}</details></nav>{sections}<main>
{body}
{around}
</main></div><script src="{up}site.js"></script></body></html>
"""
REDIRECT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title} - tutti</title><meta http-equiv="refresh" content="0; url={to}">
<link rel="canonical" href="{to}"></head><body>This page has moved: <a href="{to}">{title}</a></body></html>
"""
SHELVES = ROOT / "docs" / "README.md"  # its headings and links are the contents, in this order


def version():
    return re.search(r'version = "([^"]+)"', (ROOT / "include" / "tutti" / "version.hpp").read_text())[1]


def slug(title):
    """As GitHub makes the end of a link to a heading."""
    return re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).replace(" ", "-")


class Site:
    def __init__(self, out):
        self.out, self.wrong, self.sources = out, [], set()
        self.pages = [ROOT / p for p in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "bench/README.md", "infra/README.md")]
        self.pages += [p for p in (ROOT / "SECURITY.md", ROOT / "bench" / "RESULTS.md", ROOT / "bench" / "roofline" / "RESULTS.md") if p.is_file()]
        self.pages += sorted((ROOT / "docs").rglob("*.md"))
        self.index = []  # of the search
        self.md = MarkdownIt("commonmark", {"highlight": self.code}).enable("table")
        self.titles = {p: self.title(p.read_text()) for p in self.pages}
        self.nav = self.shelves()

    def shelves(self):
        """[(heading, pages)] of SHELVES. A page that it does not name is an error: a reader would not find it."""
        nav = [("Begin", [ROOT / "README.md"])]
        for part in re.split(r"^## +", SHELVES.read_text(), flags=re.M)[1:]:
            links = (Path(os.path.normpath(SHELVES.parent / href)) for href in re.findall(r"\]\(([^)#:]+\.md)\)", part))
            nav.append((part.partition("\n")[0], [page for page in links if page in self.titles]))
        known = {page for _, group in nav for page in group} | {SHELVES}
        for page in self.pages:
            if page not in known and not page.is_relative_to(ROOT / "docs"):
                nav[-1][1].append(page)
            elif page not in known:
                self.wrong.append(f"{page.relative_to(ROOT)}: docs/README.md does not name it")
        return nav

    @staticmethod
    def title(text):
        found = re.search(r"^# +(.+)$", text, re.M)
        return found[1].replace("`", "") if found else "tutti"

    def target(self, page):
        """Where a page stands in the site."""
        path = page.relative_to(ROOT)
        return path.parent / "index.html" if path.name == "README.md" else path.with_suffix(".html")

    @staticmethod
    def code(text, language, _):
        try:
            lexer = get_lexer_by_name(language or "text")
        except ClassNotFound:
            lexer = TextLexer()
        return highlight(text, lexer, HtmlFormatter(nowrap=True))

    def relative(self, target, where):
        return os.path.relpath(target, where.parent)

    def link(self, page, href):
        """The same link in the site."""
        if re.match(r"[a-z]+:", href):
            return href
        path, _, heading = href.partition("#")
        where = self.target(page)
        if not path:
            self.expect_heading(page, page, heading)
            return href
        to = Path(os.path.normpath(page.parent / path))
        if not to.exists():
            self.wrong.append(f"{page.relative_to(ROOT)}: a link to {path}, which does not exist")
            return href
        if to in self.titles:
            self.expect_heading(page, to, heading)
            return self.relative(self.target(to), where) + ("#" + heading if heading else "")
        if to.is_dir() and (to / "README.md") in self.titles:
            return self.relative(self.target(to / "README.md"), where)
        if to.suffix == ".svg":
            (self.out / to.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(to, self.out / to.relative_to(ROOT))
            return self.relative(to.relative_to(ROOT), where)
        self.sources.add(to)
        return self.relative(self.source_target(to), where)

    @staticmethod
    def source_target(to):
        return Path("source") / (str(to.relative_to(ROOT)) + ".html")

    def expect_heading(self, page, to, heading):
        titles = re.findall(r"^#+ +(.+?) *$", re.sub(r"^```.*?^```$", "", to.read_text(), flags=re.M | re.S), re.M)
        if heading and heading not in {slug(t) for t in titles}:
            self.wrong.append(f"{page.relative_to(ROOT)}: a link to {to.relative_to(ROOT)}#{heading}, and no such heading is there")

    def contents(self, where, here=None):
        out = []
        for name, group in self.nav:
            out.append(f"<p>{name}</p><ul>")
            for page in group:
                mark = ' class="here"' if page == here else ""
                out.append(f'<li{mark}><a href="{self.relative(self.target(page), where)}">{html.escape(self.titles[page])}</a></li>')
            out.append("</ul>")
        return "".join(out)

    def write(self, where, title, body, page=None, sections=()):
        file = self.out / where
        file.parent.mkdir(parents=True, exist_ok=True)
        up = os.path.relpath(".", where.parent) + "/"
        full = title if title == "tutti" else f"{title} - tutti"
        file.write_text(TEMPLATE.format(title=html.escape(full), about=html.escape(self.about(body, title)), up=up,
                                        header=HEADER.format(up=up, version=version()), nav=self.contents(where, page),
                                        sections=self.on_this_page(sections), body=body, around=self.around(where, page)))

    @staticmethod
    def on_this_page(sections):
        """The contents of one page, from its headings of levels 2 and 3."""
        if len(sections) < 2:
            return ""
        rows = "".join(f'<li{"" if level == 2 else " class=deep"}><a href="#{name}">{html.escape(text)}</a></li>'
                       for level, name, text in sections)
        return '<nav class="sections" aria-label="On this page"><details><summary>On this page</summary>' \
               f"<ul>{rows}</ul></details></nav>"

    def around(self, where, page):
        """Links to the previous and the next page, in the order of the contents."""
        order = list(dict.fromkeys(p for _, group in self.nav for p in group))
        if page not in order:
            return ""
        at, links = order.index(page), []
        for kind, words, other in (("previous", "Previous", at - 1), ("next", "Next", at + 1)):
            if 0 <= other < len(order):
                to = order[other]
                links.append(f'<a class="{kind}" rel="{kind[:4]}" href="{self.relative(self.target(to), where)}"><small>{words}</small>'
                             f"{html.escape(self.titles[to])}</a>")
        return f'<div class="around">{"".join(links)}</div>'

    @staticmethod
    def about(body, title):
        """What a search engine shows of a page: its first paragraph without marks, at most 160 characters, whole words."""
        found = re.search(r"<p>(?!<img)(.+?)</p>", body, re.S)
        text = " ".join(html.unescape(re.sub(r"<[^>]+>", "", found[1])).split()) if found else f"{title}, a file of tutti"
        return text if len(text) <= 160 else text[:157].rsplit(" ", 1)[0] + " ..."

    def linked_title(self, page, text, href):
        """The title of the page that a link leads to, if the link's text is the file's name; else nothing."""
        path, _, heading = href.partition("#")
        to = Path(os.path.normpath(page.parent / path)) if path else page
        if to not in self.titles or not re.fullmatch(r"[\w./-]+\.md", text):
            return None
        for line in re.findall(r"^#+ +(.+?) *$", to.read_text(), re.M) if heading else ():
            if slug(line) == heading:
                return self.titles[to] + ": " + line.replace("`", "")
        return self.titles[to]

    def render(self, page):
        tokens = self.md.parse(re.sub(r"^<!--.*?-->\n", "", page.read_text(), flags=re.M))
        for i, token in enumerate(tokens):
            if token.type == "heading_open":
                token.attrSet("id", slug(tokens[i + 1].content))
            children = token.children or []
            for k, child in enumerate(children):
                if child.type == "link_open" and children[k + 1].type in ("text", "code_inline"):
                    title = self.linked_title(page, children[k + 1].content, child.attrGet("href"))
                    if title:
                        children[k + 1].type, children[k + 1].tag, children[k + 1].content = "text", "", title
                for name in ("href", "src"):
                    if child.attrGet(name):
                        child.attrSet(name, self.link(page, child.attrGet(name)))
        sections = [(int(token.tag[1]), token.attrGet("id"), tokens[i + 1].content.replace("`", ""))
                    for i, token in enumerate(tokens) if token.type == "heading_open" and token.tag in ("h2", "h3")]
        body = self.md.renderer.render(tokens, self.md.options, {})
        self.add_to_index(page, body)
        body = re.sub(r'<(h[23]) id="([^"]+)">(.*?)</\1>',
                      r'<\1 id="\2">\3<a class="anchor" href="#\2" aria-label="Link to this section">#</a></\1>', body)
        # Wide tables scroll by themselves.
        body = body.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
        return self.with_copy(body), sections

    @staticmethod
    def with_copy(body):
        return body.replace("<pre>", '<div class="code"><button class="copy" type="button">Copy</button><pre>') \
            .replace("</pre>", "</pre></div>")

    def add_to_index(self, page, body):
        """One entry of the search for each section, with its text without marks."""
        for part in re.split(r"(?=<h[23] id=)", body):
            heading = re.match(r'<h[23] id="([^"]+)">(.*?)</h', part)
            text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", part)).split())
            if not text:
                continue
            name = html.unescape(re.sub(r"<[^>]+>", "", heading[2])) if heading else ""
            self.index.append({"title": self.titles[page], "heading": name, "text": text,
                               "url": str(self.target(page)) + (f"#{heading[1]}" if heading else "")})

    def write_redirects(self):
        """Each line of redirects.txt is an old page and the one that holds its contents now."""
        for line in (HERE / "redirects.txt").read_text().splitlines():
            if not line or line.startswith("#"):
                continue
            old, new = line.split()
            to = ROOT / new
            if to not in self.titles:
                self.wrong.append(f"docs/site/redirects.txt: no page {new}")
                continue
            where = (ROOT / old).relative_to(ROOT).with_suffix(".html")
            if (self.out / where).exists():
                self.wrong.append(f"docs/site/redirects.txt: {old} is a page")
                continue
            (self.out / where).parent.mkdir(parents=True, exist_ok=True)
            (self.out / where).write_text(REDIRECT.format(to=self.relative(self.target(to), where), title=html.escape(self.titles[to])))

    def write_source(self, path):
        where = self.source_target(path)
        if path.is_dir():
            names = sorted(p.name + ("/" if p.is_dir() else "") for p in path.iterdir() if not p.name.startswith((".", "__")))
            body = "<ul>" + "".join(f"<li>{html.escape(n)}</li>" for n in names) + "</ul>"
        else:
            text = path.read_text()
            try:
                lexer = get_lexer_for_filename(path.name, text)
            except ClassNotFound:
                lexer = TextLexer()
            body = self.with_copy(f"<pre><code>{highlight(text, lexer, HtmlFormatter(nowrap=True))}</code></pre>")
        self.write(where, path.name, f"<h1>{html.escape(str(path.relative_to(ROOT)))}</h1>{body}")

    def make(self):
        for page in self.pages:
            body, sections = self.render(page)
            self.write(self.target(page), self.titles[page], body, page, sections)
        for path in sorted(self.sources):
            self.write_source(path)
        light = HtmlFormatter(style="default").get_style_defs("pre")
        dark = HtmlFormatter(style="native").get_style_defs("pre")
        plain = [line for line in light.splitlines() if not line.startswith(("pre {", "td.", "span."))]
        at_night = [line for line in dark.splitlines() if not line.startswith(("pre {", "td.", "span."))]
        css = (HERE / "site.css").read_text() + "\n".join(plain) + \
            "\n@media (prefers-color-scheme: dark) {\n" + "\n".join(at_night) + "\n}\n"
        (self.out / "site.css").write_text(css)
        shutil.copy(HERE / "favicon.svg", self.out / "favicon.svg")
        shutil.copy(HERE / "site.js", self.out / "site.js")
        write_index(self.out, self.index)
        self.write_redirects()
        print("\n".join(self.wrong))
        print(f"{len(self.pages)} pages, {len(self.sources)} files, {len(self.wrong)} links that lead nowhere")
        return 1 if self.wrong else 0


def write_index(out, entries):
    (out / "search.js").write_text("window.siteIndex = " + json.dumps(entries, ensure_ascii=False, separators=(",", ":")) + ";\n")


def index_of_tags(out, tags):
    """Adds what Doxygen's tag file names: classes, and functions of namespaces."""
    entries = json.loads((out / "search.js").read_text().partition(" = ")[2].rstrip(";\n"))
    for compound in xml.etree.ElementTree.parse(tags).getroot().iter("compound"):
        kind, name = compound.get("kind"), compound.findtext("name")
        if kind in ("class", "struct"):
            page = compound.findtext("filename")
            entries.append({"title": name, "heading": "", "text": f"{kind} of the reference", "url": f"reference/{page}"})
        elif kind == "namespace":
            for member in compound.iter("member"):
                if member.get("kind") == "function":
                    entries.append({"title": f"{name}::{member.findtext('name')}()", "heading": "", "text": "function of the reference",
                                    "url": f"reference/{member.findtext('anchorfile')}#{member.findtext('anchor')}"})
    write_index(out, list({e["url"]: e for e in entries}.values()))


def main(arguments):
    if arguments[0] == "--header":
        print(HEADER.format(up=arguments[1], version=version()))
        return 0
    if arguments[0] == "--index":
        index_of_tags(Path(arguments[1]), arguments[2])
        return 0
    return Site(Path(arguments[0])).make()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
