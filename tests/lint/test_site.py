#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""docs/build.sh --pages makes a site of the pages. Each link in it works, no page is wider than a phone, the search finds pages,
and docs/site/check.py finds what a page lacks. Each page of docs/ is on a shelf and is short. The pictures are those that
docs/pictures/make.py draws. (docs/build.sh alone also makes the reference, which takes a minute: test_reference.sh.)"""
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

from sources import ROOT, skip

sys.path.append(str(ROOT / "docs" / "site"))
import check  # noqa: E402

PHONE = 390
LONGEST = 150
SHELVES = ("tutorial", "how-to", "reference", "explanation")
WIDTH = "<script>addEventListener('load', () => document.title = 'width ' + document.documentElement.scrollWidth)</script></body>"


# Types a word into the search, and makes the first result the title of the page.
SEARCH = """<script>addEventListener('load', () => {
  const box = document.getElementById('search');
  box.value = 'shared memory windows'; box.dispatchEvent(new Event('input'));
  const look = () => { const hit = document.querySelector('#hits a'); hit ? document.title = 'hit ' + hit.getAttribute('href') : setTimeout(look, 20); };
  look();
})</script></body>"""


def shelf_complaints():
    """Tests that a page is on a shelf, has at most LONGEST lines, and says in its first sentence for which readers it
    is."""
    docs = ROOT / "docs"
    for page in sorted(docs.rglob("*.md")):
        name, text = str(page.relative_to(ROOT)), page.read_text()
        if page.parent == docs and page.name not in ("README.md", "architecture.md", "why.md") or \
                page.parent != docs and page.relative_to(docs).parts[0] not in SHELVES:
            yield f"{name}: lies on no shelf; they are {', '.join(SHELVES)}"
        if text.count("\n") > LONGEST:
            yield f"{name}: {text.count(chr(10))} lines, at most {LONGEST}"
        if not re.match(r"# .+\n\nThis page is for ", text):
            yield f"{name}: its first sentence does not say for whom it is"


def see_what_is_missing(text):
    """Tests that check.py accepts a page, and reports each required part that is removed from it."""
    assert list(check.page_complaints(text, True, {})) == [], list(check.page_complaints(text, True, {}))
    for part, what in (('id="search"', "no search"), ("site.js", "no search"), ('<nav class="pages"', "all pages"), ('<nav class="sections"', "of the page"),
                       ('class="next"', "next"), ('<button class="copy"', "copy buttons"), ("<h1", "no title"), ("site.css", "style")):
        assert part in text, part
        without = text.replace('class="previous"', "").replace(part, "")
        assert any(what in c for c in check.page_complaints(without, True, {})), f"check.py does not see that {part} is missing"
    for wrong, what in (('<a href="x.html">docs/x.md</a>', "not a title"), ("&amp;#91;", "entity"), ("&amp;lt;", "entity")):
        assert any(what in c for c in check.page_complaints(text.replace("</h1>", "</h1>" + wrong), True, {})), wrong


def search_in(browser, page):
    """Returns the first result of the page's search."""
    copy = page.with_name("searching.html")
    copy.write_text(page.read_text().replace("</body>", SEARCH))
    shown = subprocess.run([browser, "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--dump-dom", copy.as_uri()],
                           text=True, capture_output=True, timeout=300).stdout
    hit = re.search(r"<title>hit ([^<]+)</title>", shown)
    return hit[1] if hit else None


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.ids, self.open = [], set(), []
        self.tags, self.title, self.texts = [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.links += [attributes[k] for k in ("href", "src") if k in attributes]
        if "id" in attributes:
            self.ids.add(attributes["id"])
        self.tags.append((tag, attributes))
        self.open = [tag, attributes.get("href"), ""] if tag in ("a", "title") else self.open

    def handle_data(self, data):
        if self.open:
            self.open[2] += data

    def handle_endtag(self, tag):
        if not self.open or tag != self.open[0]:
            return
        if tag == "title":
            self.title = self.open[2]
        else:
            self.texts.append((self.open[1], self.open[2]))
        self.open = []

    def complaints(self):
        """Yields what check.py must report: missing parts that a search engine, a browser's tab or a reader needs."""
        if not (self.title == "tutti" or self.title.endswith(" - tutti")):
            yield f"its title is '{self.title}', without the project's name"
        about = [a.get("content", "") for t, a in self.tags if t == "meta" and a.get("name") == "description"]
        if len(about) != 1 or not 10 <= len(about[0]) <= 160:
            yield f"its description is {about}"
        if not any(t == "link" and a.get("rel") == "icon" for t, a in self.tags):
            yield "it has no icon"
        for href, text in self.texts:
            if re.fullmatch(r"[\w./-]+\.md", text) and (href or "").partition("#")[0].endswith(".html") and "source/" not in href:
                yield f"a link to {href} reads as the file's name, {text}, not as the page's title"


def main():
    if any(subprocess.run([p, "-c", "import markdown_it, pygments"], capture_output=True).returncode == 0
           for p in ("python3", "/usr/bin/python3") if shutil.which(p)) is False:
        skip("no markdown_it and pygments (Debian: apt-get install python3-markdown-it python3-pygments)")
    wrong = list(shelf_complaints())
    if subprocess.run([sys.executable, ROOT / "docs" / "pictures" / "make.py", "--check"]).returncode != 0:
        wrong.append("run docs/pictures/make.py")
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        done = subprocess.run(["bash", ROOT / "docs" / "build.sh", "--pages", site], text=True, capture_output=True, timeout=300)
        if done.returncode != 0:
            print(done.stdout + done.stderr)
            return 1
        see_what_is_missing((site / "docs" / "how-to" / "troubleshooting.html").read_text())
        redirects = [p for p in site.rglob("*.html") if 'http-equiv="refresh"' in p.read_text()]
        if site / "docs" / "performance.html" not in redirects:
            wrong.append("docs/performance.html: an old address does not lead to the page of today")
        pages = {p: Page(p.read_text()) for p in site.rglob("*.html") if p not in redirects}
        for path, page in pages.items():
            wrong += [f"{path.relative_to(site)}: {c}" for c in page.complaints()]
            for link in page.links:
                to, _, heading = link.partition("#")
                if re.match(r"[a-z]+:", link) or to.endswith("reference/index.html"):
                    continue
                target = (path.parent / to).resolve() if to else path
                if not target.is_file():
                    wrong.append(f"{path.relative_to(site)}: {link} leads nowhere")
                elif heading and target in pages and heading not in pages[target].ids:
                    wrong.append(f"{path.relative_to(site)}: {link} leads to no heading")
        browser = shutil.which("chromium-headless-shell")
        hit = search_in(browser, site / "docs" / "architecture.html") if browser else ""
        if hit is None or browser and not (site / "docs" / hit.partition("#")[0]).resolve().is_file():
            wrong.append(f"the search leads to {hit}")
        for name in ("index.html", "docs/tutorial/first-net.html", "docs/explanation/performance.html", "docs/reference/options.html") if browser else ():
            copy = site / name
            copy.write_text(copy.read_text().replace("</body>", WIDTH))
            shown = subprocess.run([browser, "--no-sandbox", "--disable-gpu", f"--window-size={PHONE},800", "--dump-dom", copy.as_uri()],
                                   text=True, capture_output=True, timeout=120).stdout
            width = re.search(r"<title>width (\d+)</title>", shown)
            if not width:
                wrong.append(f"{name}: Chromium does not show it")
            elif int(width[1]) > PHONE:
                wrong.append(f"{name}: {width[1]} pixels wide on a screen of {PHONE}")
    print("\n".join(wrong))
    print(f"{len(pages)} pages, {len(wrong)} complaints" + ("" if browser else "; no Chromium"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
