#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tutti-report on a long run: how large its page is, how long tutti-report takes, and how long headless Chromium takes
to open it.

    bench/report.py [--steps 100000] [--repeats 5]

The run is generated: it has a log of this number of steps, 200 evaluations and a confusion matrix of ten classes with 24 images.
Opening is measured from the navigation until the page's own script has run and the layout is complete, by the browser's
own clock, without the start of the browser.
"""
import argparse
import base64
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOOL = Path(__file__).resolve().parents[1] / "build" / "tools" / "tutti-report"
BROWSERS = "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"
# Runs after the page's own script. Returns the milliseconds until the whole page is loaded and laid out.
WATCH = """<script>addEventListener("load", () => {
  document.body.getBoundingClientRect();
  document.body.dataset.opened = performance.now();
});</script></body>"""


def write_run(folder, steps):
    lines = [{"event": "start", "version": "0.1.0", "options": {f"option-{k}": k for k in range(150)}}]
    for n in range(1, steps + 1):
        x = n * 0.6180339887498949 % 1
        lines.append({"event": "step", "epoch": 1 + n * 200 // (steps + 1), "step": n, "train_loss": 1 + x, "train_top1": x, "images_per_second": 1000 + x,
                      "lr": x / 10, "batch": 128, "data_wait": x / 4, "comm_wait": x / 4, "compute": 1 - x / 2, "seconds": n / 10})
        if n % max(1, steps // 200) == 0:
            lines.append({"event": "epoch", "epoch": n * 200 // steps, "step": n, "train_loss": 1 + x, "train_top1": x, "test_loss": 1 + x,
                          "test_top1": x, "test_top5": x, "images_per_second": 1000 + x, "lr": x / 10, "batch": 128, "seconds": steps / 2000})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    picture = base64.b64encode(b"\x89PNG\r\n\x1a\n" + os.urandom(16000)).decode()  # the size of an image of 72 x 72
                                                                                   # pixels
    worst = [{"index": k, "label": k % 10, "said": (k + 1) % 10, "loss": 9.5, "sure": 0.9, "png": picture} for k in range(24)]
    (folder / "evaluation.json").write_text(json.dumps(
        {"format": 1, "epoch": 200, "step": steps, "averaged": False, "images": 10000, "classes": 10, "class_names": [],
         "confusion": [v for label in range(10) for said in range(10) for v in (label, said, 100)], "worst": worst}))


def opened(browser, page):
    """Opens the page in a browser. Returns the time in milliseconds."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,900",
                               f"--user-data-dir={home}", "--dump-dom", page.as_uri()], text=True,
                              capture_output=True, timeout=120, check=True)
    return float(done.stdout.split('data-opened="')[1].split('"')[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    if args.steps < 1 or args.repeats < 1:
        parser.error("--steps, --repeats: expected 1 or more")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    with tempfile.TemporaryDirectory() as name:
        folder, page = Path(name), Path(name) / "page.html"
        write_run(folder, args.steps)
        made, shown = [], []
        for _ in range(args.repeats):
            began = time.monotonic()
            subprocess.run([TOOL, folder, "--out", page], check=True, stdout=subprocess.DEVNULL)
            made.append(time.monotonic() - began)
        size = page.stat().st_size
        watched = folder / "watched.html"
        watched.write_text(page.read_text().replace("</body>", WATCH))
        if browser:
            shown = [opened(browser, watched) / 1000 for _ in range(args.repeats)]

    def text(values):
        return f"{statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"

    print(f"{args.steps} steps: a page of {size / 1e6:.2f} MB, made in {text(made)}, " +
          (f"opened in {text(shown)}" if shown else "not opened: no browser (Debian: apt-get install chromium-headless-shell)"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
