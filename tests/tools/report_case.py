# SPDX-License-Identifier: MIT
"""Base class for tests of tutti-report: two runs of train_cifar10, their page, and a browser."""
import base64
import html.parser
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path

BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", Path(__file__).resolve().parents[2] / "build"))
LAUNCH = str(BUILD / "tools" / "tutti-launch")
REPORT = str(BUILD / "tools" / "tutti-report")
TRAIN = str(BUILD / "examples" / "train_cifar10")
BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = ["--dataset", "synthetic", "--num-examples", "256", "--image-shape", "3,16,16", "--depth", "8", "--batch-size", "32",
           "--epochs", "2", "--disp-batches", "1"]

# A text for all names and values. If it is not escaped, it ends a script element, an attribute and a string.
EVIL = "</script><script>document.title='caught'</script><img src=x onerror=\"document.title='caught'\"> ' \" \\ {{data}}"


class Page(html.parser.HTMLParser):
    """The elements of a page and the text of its data."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.data, self.inside = [], "", None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = dict(attrs).get("id") if tag == "script" else None

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside == "data":
            self.data += data

    def count(self, tag):
        return sum(1 for t, _ in self.tags if t == tag)


def png(text):
    """Returns (width, height, rows) of a PNG file in Base64. The file must not use filters."""
    data = base64.b64decode(text, validate=True)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body, crc = data[at + 8:at + 8 + length], struct.unpack(">I", data[at + 8 + length:at + 12 + length])[0]
        assert zlib.crc32(kind + body) == crc
        chunks[kind] = body
        at += 12 + length
    width, height, depth, colours = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    rows = zlib.decompress(chunks[b"IDAT"])
    assert depth == 8 and len(rows) == height * (1 + width * {0: 1, 2: 3}[colours])
    return width, height, rows


class ReportCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.access(TRAIN, os.X_OK):
            print("SKIP: no train_cifar10 in", TRAIN)
            sys.exit(77)
        temp = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temp.cleanup)
        cls.folder = Path(temp.name)
        for name, more in (("first", []), ("second", ["--lr", "0.2", "--ema-decay", "0.9"])):
            done = subprocess.run([TRAIN, *OPTIONS, *more, "--run-dir", cls.folder / name], text=True, capture_output=True, timeout=300)
            assert done.returncode == 0, done.stdout + done.stderr

    def report(self, code, *words, cwd=None):
        done = subprocess.run([REPORT, *map(str, words)], text=True, capture_output=True, timeout=300, cwd=cwd or self.folder)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def page(self, code, *runs):
        out = self.folder / "page.html"
        out.unlink(missing_ok=True)
        said = self.report(code, "--out", out, *runs).stderr
        page = Page(out.read_text())
        # The page is one document without external resources, and its only script is its own.
        self.assertEqual((page.count("script"), page.count("title"), page.count("h1"), page.count("link")), (2, 1, 1, 1))
        self.assertFalse([a for t, a in page.tags if "src" in a or not a.get("href", "data:").startswith("data:")])
        return json.loads(page.data), said

    def dom(self, page, *options):
        with tempfile.TemporaryDirectory() as home:
            done = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
                                   f"--user-data-dir={home}", *options, "--dump-dom", page.as_uri()], text=True, capture_output=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line for line in done.stderr.splitlines() if "CONSOLE" in line], [])
        return done.stdout

    def evil_run(self):
        """Makes a run in which each string is EVIL."""
        start = {"event": "start", "version": "0.1.0", "backend": EVIL, "options": {EVIL: EVIL, "constructor": 1, "__proto__": EVIL}}
        epoch = {"event": "epoch", "epoch": 1, "step": 1, "train_loss": 1.0, "test_top" + EVIL: 0.5}
        lines = [start, {"event": "warning", "message": EVIL}, epoch, {"event": "end", "status": EVIL, "message": EVIL}]
        folder = self.folder / "<b>evil'\""
        folder.mkdir(exist_ok=True)
        (folder / "log.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        return folder


def main():
    if not os.access(REPORT, os.X_OK):
        sys.exit(f"{REPORT} has not been built")
    unittest.main()
