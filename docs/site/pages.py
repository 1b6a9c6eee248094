#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the pages of the site from the Markdown of the tree; docs/build.sh calls it.

    pages.py OUT

A page a.md becomes a.html. What else of the tree a page links to, a source file or a folder, becomes a page under source/. A link
that leads nowhere ends it with 1. Needs python3-markdown-it and python3-pygments, as Debian has them.
"""
import html
import os
import re
import shutil
import sys
from pathlib import Path

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_by_name, get_lexer_for_filename
from pygments.util import ClassNotFound

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><meta name="description" content="{about}">
<meta property="og:title" content="{title}"><meta property="og:description" content="{about}"><meta property="og:type" content="website">
<link rel="icon" type="image/svg+xml" href="{up}favicon.svg"><link rel="stylesheet" href="{up}site.css"></head>
<body><header><a class="name" href="{up}index.html">tutti</a><span class="version">{version}</span>
<a href="{up}docs/index.html">Pages</a> <a href="{up}reference/index.html">Reference</a></header>
<div class="columns"><nav><details><summary>Contents</summary>{nav}</details></nav><main>
{body}
</main></div><script>
// On a wide screen the contents stand open beside the page.
if (matchMedia("(min-width: 60em)").matches) document.querySelector("nav details").open = true;
</script></body></html>
"""
SHELVES = ROOT / "docs" / "README.md"  # its headings and links are the contents, in this order


def slug(title):
    """As GitHub makes the end of a link to a heading."""
    return re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).replace(" ", "-")


class Site:
    def __init__(self, out):
        self.out, self.wrong, self.sources = out, [], set()
        self.pages = [ROOT / p for p in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "bench/README.md", "infra/README.md")]
        self.pages += [p for p in (ROOT / "SECURITY.md", ROOT / "bench" / "RESULTS.md", ROOT / "bench" / "floor" / "RESULTS.md") if p.is_file()]
        self.pages += sorted((ROOT / "docs").rglob("*.md"))
        header = (ROOT / "include" / "tutti" / "version.hpp").read_text()
        self.version = re.search(r'version = "([^"]+)"', header)[1]
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

    def write(self, where, title, body, page=None):
        file = self.out / where
        file.parent.mkdir(parents=True, exist_ok=True)
        up = os.path.relpath(".", where.parent) + "/"
        full = title if title == "tutti" else f"{title} - tutti"
        file.write_text(TEMPLATE.format(title=html.escape(full), about=html.escape(self.about(body, title)), up=up, version=self.version,
                                        nav=self.contents(where, page), body=body))

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
        body = self.md.renderer.render(tokens, self.md.options, {})
        # Wide tables scroll by themselves.
        return body.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")

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
            body = f"<pre><code>{highlight(text, lexer, HtmlFormatter(nowrap=True))}</code></pre>"
        self.write(where, path.name, f"<h1>{html.escape(str(path.relative_to(ROOT)))}</h1>{body}")

    def make(self):
        for page in self.pages:
            self.write(self.target(page), self.titles[page], self.render(page), page)
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
        print("\n".join(self.wrong))
        print(f"{len(self.pages)} pages, {len(self.sources)} files, {len(self.wrong)} links that lead nowhere")
        return 1 if self.wrong else 0


if __name__ == "__main__":
    sys.exit(Site(Path(sys.argv[1])).make())
