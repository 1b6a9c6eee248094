#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""docs/build.sh --pages makes the pages as a site: each link in it leads somewhere, and no page is wider than a phone. The pictures are
what docs/pictures/make.py draws. (docs/build.sh alone also makes the reference, which takes a minute.)"""
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

from sources import ROOT, skip

PHONE = 390
WIDTH = "<script>addEventListener('load', () => document.title = 'width ' + document.documentElement.scrollWidth)</script></body>"


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
        """What a page lacks that a search engine, a browser's tab or a reader looks for."""
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
    wrong = []
    if subprocess.run([sys.executable, ROOT / "docs" / "pictures" / "make.py", "--check"]).returncode != 0:
        wrong.append("run docs/pictures/make.py")
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        done = subprocess.run(["bash", ROOT / "docs" / "build.sh", "--pages", site], text=True, capture_output=True, timeout=300)
        if done.returncode != 0:
            print(done.stdout + done.stderr)
            return 1
        pages = {p: Page(p.read_text()) for p in site.rglob("*.html")}
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
