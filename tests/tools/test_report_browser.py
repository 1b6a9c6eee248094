#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests tutti-report's page in a browser: its script has no error, all curves appear, and no text of a run becomes
code."""
import json
import re
import sys

from report_case import BROWSER, EVIL, Page, ReportCase, main


class ReportBrowser(ReportCase):
    def test_in_a_browser(self):
        self.page(0, "first", "second")
        for options in (["--window-size=1200,900"], ["--window-size=390,844", "--blink-settings=preferredColorScheme=0"]):
            dom = Page(self.dom(self.folder / "page.html", *options))
            curves = [a for t, a in dom.tags if t == "path" and a.get("class") == "curve"]
            # Loss and top-1: train and test of both runs, and of the averaged weights of one run.
            self.assertGreaterEqual(len(curves), 10 + 3 + 2 + 2 + 6)
            self.assertFalse([a["d"] for a in curves if "NaN" in a["d"] or "Infinity" in a["d"] or "undefined" in a["d"]])
            self.assertTrue(all(len(a["d"]) > 20 for a in curves))
            pictures = [a for t, a in dom.tags if t == "svg" and a.get("role") == "img"]
            self.assertGreaterEqual(len(pictures), 7)
            self.assertTrue(all(a["aria-label"] for a in pictures))
            self.assertEqual(dom.count("caption"), dom.count("table"))
            faces = [a for t, a in dom.tags if t == "img"]
            self.assertGreater(len(faces), 4)
            self.assertTrue(all(a["alt"] and a["src"].startswith("data:image/png;base64,") for a in faces))
            self.assertEqual(sum(a.get("class") == "matrix" for _, a in dom.tags), 2)
        # Options that only the program of one run has are collapsed.
        other = self.folder / "other"
        other.mkdir()
        log = (self.folder / "second" / "log.jsonl").read_text().splitlines()
        start = json.loads(log[0])
        start["options"] = {"depth": 8, **{f"another-{i}": i for i in range(40)}}
        (other / "log.jsonl").write_text("\n".join([json.dumps(start), *log[1:]]) + "\n")
        self.page(0, "first", other)
        dom = self.dom(self.folder / "page.html")
        differs, folded = re.search(r"What differs between the runs.*?</table>", dom, re.S), re.search(r'<details class="lone">.*?</details>', dom, re.S)
        self.assertNotIn("(not recorded)", differs[0] if differs else "")
        self.assertIn("options that only some of the runs have", folded[0])
        self.assertEqual(folded[0].count("another-"), 40)
        self.page(0, self.evil_run())
        evil = self.dom(self.folder / "page.html")
        self.assertNotIn("<title>caught", evil)
        self.assertEqual(sum(a.get("onerror") is not None for _, a in Page(evil).tags), 0)
        self.page(0, "first")
        # Checks that the test would notice an error of a script.
        broken = self.folder / "broken.html"
        broken.write_text((self.folder / "page.html").read_text().replace('"use strict";', '"use strict"; nowhere();'))
        with self.assertRaisesRegex(AssertionError, "nowhere"):
            self.dom(broken)


if __name__ == "__main__":
    if BROWSER is None:
        print("SKIP: no browser (Debian: apt-get install chromium-headless-shell)")
        sys.exit(77)
    main()
