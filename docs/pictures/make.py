#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws the pictures of the pages; needs Python alone.

    docs/pictures/make.py [--check]

run.svg      from run.jsonl, the log of a training as it was written (log.jsonl)
scaling.svg  from scaling.json, images a second as bench/RESULTS.md has them
batch.svg, gradient.svg, members.svg  from diagrams.py: boxes that name classes of the sources
--check ends with 1 if a picture differs from what this draws, or if a diagram names a class that the sources do not have.
"""
import json
import math
import sys
from pathlib import Path

import diagrams

HERE = Path(__file__).resolve().parent
WIDTH, HEIGHT = 720, 300
# Colours for light and dark, in the picture itself, because a page shows it as it is.
STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #333 } .small { font-size: 11px; fill: #666 }
.grid { stroke: #ddd; stroke-width: 1 } .a { stroke: #1f6feb; fill: none; stroke-width: 2 } .b { stroke: #d1570b; fill: none; stroke-width: 2 }
.fa { fill: #1f6feb } .fb { fill: #b9c4d3 } .dot { fill: #d1570b }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } .small { fill: #aaa } .grid { stroke: #444 } .a { stroke: #6cb0ff } .b { stroke: #ffa657 }
  .fa { fill: #6cb0ff } .fb { fill: #566273 } .dot { fill: #ffa657 }
}
</style>"""


def svg(title, parts, height=HEIGHT):
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">\n' \
           f"<title>{title}</title>\n{STYLE}\n" + "\n".join(parts) + "\n</svg>\n"


def text(x, y, words, anchor="start", kind=""):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{f" class={chr(34)}{kind}{chr(34)}" if kind else ""}>{words}</text>'


def line(points, kind):
    return f'<polyline class="{kind}" points="' + " ".join(f"{x:.1f},{y:.1f}" for x, y in points) + '"/>'


def run_picture(lines):
    events = [json.loads(one) for one in lines if one.strip()]
    steps = [e for e in events if e["event"] == "step"]
    epochs = [e for e in events if e["event"] == "epoch"]
    start = next(e for e in events if e["event"] == "start")
    left, right, top, bottom = 56, WIDTH - 64, 40, HEIGHT - 56
    last = max(e["step"] for e in steps + epochs)
    most = math.ceil(max(e["train_loss"] for e in steps) * 2) / 2

    def x(step):
        return left + (right - left) * step / last

    def y(share):
        return bottom - (bottom - top) * share

    parts = []
    for i in range(6):
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y(i / 5):.1f}" y2="{y(i / 5):.1f}"/>')
        parts.append(text(left - 8, y(i / 5) + 4, f"{most * i / 5:.1f}", "end"))
        parts.append(text(right + 8, y(i / 5) + 4, f"{i * 20} %"))
    # Means of neighbours, so that a small picture shows the course and not the noise.
    group = max(1, len(steps) // 120)
    means = [steps[i:i + group] for i in range(0, len(steps), group)]

    def curve(key, scale):
        return [(x(sum(e["step"] for e in g) / len(g)), y(sum(e[key] for e in g) / len(g) / scale)) for g in means]

    parts.append(line(curve("train_loss", most), "a"))
    parts.append(line(curve("train_top1", 1), "b"))
    tested = [(x(e["step"]), y(e["test_top1"]), e["test_top1"]) for e in epochs if e.get("test_top1") is not None]
    parts += [f'<circle class="dot" cx="{px:.1f}" cy="{py:.1f}" r="4.5"/>' for px, py, _ in tested]
    for e in epochs:
        parts.append(text(x(e["step"]), bottom + 18, f"{e['epoch']}", "middle"))
    px, py, best = tested[-1]
    parts.append(text(px - 8, py - 14, f"{100 * best:.1f} % of the test images", "end"))
    parts.append(f'<line class="a" x1="{left}" x2="{left + 26}" y1="16" y2="16"/>')
    parts.append(text(left + 32, 20, "training loss"))
    parts.append(f'<line class="b" x1="{left + 150}" x2="{left + 176}" y1="16" y2="16"/>')
    parts.append(text(left + 182, 20, "training accuracy"))
    parts.append(f'<circle class="dot" cx="{left + 330}" cy="16" r="4.5"/>')
    parts.append(text(left + 342, 20, "test accuracy"))
    o = start["options"]
    net = f"{o['network']}, width {o['width']:g}" if o["network"] == "cifar_fast" else f"{o['network']} {o['depth']}"
    parts.append(text(WIDTH / 2, HEIGHT - 8, f"epochs of {start['train_images']:,} images of {o['dataset']}; {net}, {o['precision']}, "
                      f"batch {o['global-batch-size']:,}, {start['threads']} thread{'s' if start['threads'] > 1 else ''}", "middle", "small"))
    return svg("A training: its loss and its accuracy", parts)


def scaling_picture(data):
    rows = data["rows"]
    top, row_height, left, right = 34, 62, 12, WIDTH - 150
    most = max(max(r["together"], r["alone"]) for r in rows)
    parts = [f'<rect class="fa" x="{left}" y="8" width="12" height="12"/>', text(left + 18, 19, "trained together, images/s"),
             f'<rect class="fb" x="{left + 230}" y="8" width="12" height="12"/>',
             text(left + 248, 19, "as many unconnected runs")]
    for i, row in enumerate(rows):
        y = top + i * row_height
        parts.append(text(left, y + 14, row["label"]))
        for j, (key, kind) in enumerate((("together", "fa"), ("alone", "fb"))):
            width = (right - left) * row[key] / most
            parts.append(f'<rect class="{kind}" x="{left}" y="{y + 20 + 16 * j}" width="{width:.1f}" height="14"/>')
            words = f"{row[key]:.1f}" + (f" ({100 * row['together'] / row['alone']:.1f} %)" if key == "together" else "")
            parts.append(text(left + width + 8, y + 32 + 16 * j, words))
    height = top + len(rows) * row_height + 26
    parts.append(text(left, height - 8, data["what"], kind="small"))
    return svg("What distribution costs: ranks together and alone", parts, height)


def main():
    pictures = {"scaling.svg": scaling_picture(json.loads((HERE / "scaling.json").read_text()))}
    if (HERE / "run.jsonl").is_file():
        pictures["run.svg"] = run_picture((HERE / "run.jsonl").read_text().splitlines())
    pictures |= {name: make().svg() for name, make in diagrams.PICTURES.items()}
    wrong = 0
    root = HERE.parents[1]
    sources = "".join(f.read_text() + f.name for folder in ("include", "backends") for f in (root / folder).rglob("*.hpp"))
    for name in diagrams.missing_names(sources):
        print(f"docs/pictures/diagrams.py names {name}, which the sources do not have")
        wrong = 1
    for name, picture in pictures.items():
        if "--check" not in sys.argv:
            (HERE / name).write_text(picture)
        elif not (HERE / name).is_file() or (HERE / name).read_text() != picture:
            print(f"docs/pictures/{name} is not what docs/pictures/make.py draws")
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
