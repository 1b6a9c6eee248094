# SPDX-License-Identifier: MIT
"""Draws the picture of a plan as SVG: hours and money of each fleet, the share of useful time, and the instances of a Spot
trace. Used by tutti-plan --picture. The colours are those of tutti-report's page, for light and dark."""
import html
import math

WIDTH = 960
STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #5b6470 } .title { font-size: 17px; font-weight: 600; fill: #1b1f24 }
.head { font-size: 13px; font-weight: 600; fill: #1b1f24 } .page { fill: #fafafa } .card { fill: #fff; stroke: #d8dde3 } .grid { stroke: #e9ecef }
.l0, .l1, .l2, .l3 { fill: none; stroke-width: 1.75 } .best { fill: none; stroke: #b3261e; stroke-width: 1.5 }
.l0 { stroke: #0b62c4 } .l1 { stroke: #c8501e } .l2 { stroke: #15803d } .l3 { stroke: #9333b5 }
.d0 { fill: #0b62c4 } .d1 { fill: #c8501e } .d2 { fill: #15803d } .d3 { fill: #9333b5 }
@media (prefers-color-scheme: dark) {
  text { fill: #9aa5b1 } .title, .head { fill: #e6e9ed } .page { fill: #101418 } .card { fill: #181d23; stroke: #333b45 } .grid { stroke: #262d35 }
  .best { stroke: #ff8a80 } .l0 { stroke: #6ea8ff } .l1 { stroke: #ff9260 } .l2 { stroke: #5fd08a } .l3 { stroke: #d08bf0 }
  .d0 { fill: #6ea8ff } .d1 { fill: #ff9260 } .d2 { fill: #5fd08a } .d3 { fill: #d08bf0 }
}
</style>"""


def ticks(low, high, log):
    """Returns round numbers from `low` to `high`: at most about eight."""
    if log:
        found = [m * 10.0**e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for m in (1, 2, 5)]
        found = [x for x in found if low <= x <= high]
        return found if len(found) < 9 else [x for x in found if f"{x:e}".startswith("1")]
    step = 10.0**math.floor(math.log10((high - low) / 4))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= 7)
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


class Panel:
    """A card with two axes. x and y: (lowest, highest, whether the axis is logarithmic)."""

    def __init__(self, box, head, x, y, names):
        self.left, self.top, self.right, self.bottom = box[0] + 62, box[1] + 62, box[0] + box[2] - 24, box[1] + box[3] - 40
        self.x, self.y = self._wide(*x), self._wide(*y)
        self.parts = [f'<rect class="card" x="{box[0]}" y="{box[1]}" width="{box[2]}" height="{box[3]}" rx="8"/>',
                      f'<text class="head" x="{box[0] + 14}" y="{box[1] + 22}">{html.escape(head)}</text>']
        for value in ticks(*self.x):
            self.parts += [f'<path class="grid" d="M{self.at_x(value):.1f} {self.top}V{self.bottom}"/>',
                           f'<text x="{self.at_x(value):.1f}" y="{self.bottom + 16}" text-anchor="middle">{value:,g}</text>']
        for value in ticks(*self.y):
            self.parts += [f'<path class="grid" d="M{self.left} {self.at_y(value):.1f}H{self.right}"/>',
                           f'<text x="{self.left - 8}" y="{self.at_y(value) + 4:.1f}" text-anchor="end">{value:,g}</text>']
        self.parts += [f'<text x="{self.right}" y="{self.bottom + 32}" text-anchor="end">{html.escape(names[0])}</text>',
                       f'<text x="{box[0] + 14}" y="{box[1] + 46}">{html.escape(names[1])}</text>']

    @staticmethod
    def _wide(low, high, log):
        if log:
            low, high = max(low, 1e-6), max(high, 1e-6)
            return low / 1.15, high * 1.3, True
        return low, high if high > low else low + 1, False

    @staticmethod
    def _share(value, low, high, log):
        return (math.log(max(value, low) / low) / math.log(high / low)) if log else (value - low) / (high - low)

    def at_x(self, value):
        return self.left + (self.right - self.left) * self._share(value, *self.x)

    def at_y(self, value):
        return self.bottom - (self.bottom - self.top) * self._share(value, *self.y)

    def line(self, points, kind, labels=(), best=()):
        """Draws a line with dots; a label and a tip for each dot. best: the dots that have a ring."""
        places = [(self.at_x(x), self.at_y(y)) for x, y in points]
        self.parts.append(f'<path class="l{kind}" d="M' + "L".join(f"{x:.1f} {y:.1f}" for x, y in places) + '"/>')
        for k, ((x, y), (label, tip)) in enumerate(zip(places, labels)):
            self.parts += [f'<circle class="d{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{html.escape(tip)}</title></circle>',
                           f'<text x="{x + 6:.1f}" y="{y - 5:.1f}">{html.escape(label)}</text>']
            if k in best:
                self.parts.append(f'<circle class="best" cx="{x:.1f}" cy="{y:.1f}" r="8"/>')

    def steps(self, segments, unit):
        """Draws [(seconds, value)] as steps over time in units of `unit` seconds."""
        path, at = [], 0.0
        for seconds, value in segments:
            path.append(f"{self.at_x(at / unit):.1f} {self.at_y(value):.1f}H{self.at_x((at + seconds) / unit):.1f}")
            at += seconds
        self.parts.append('<path class="l0" d="M' + "L".join(path) + '"/>')



def first_days(segments, seconds):
    """Returns the beginning of a trace, up to this time."""
    found, at = [], 0.0
    for length, value in segments:
        if at >= seconds:
            break
        found.append((min(length, seconds - at), value))
        at += length
    return found


def draw(title, jobs, shares, trace=None, chosen=()):
    """Returns the picture. jobs: [(name, [(instances, hours, money)])]. shares: (head, [(name, [(instances, percent)])]), in the
    colours of the jobs with these names. trace: (head, segments). chosen: pairs (name, instances) that have a ring."""
    names = [name for name, _ in jobs]
    height = 404 + (220 if trace else 0)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(title)}">',
             f"<title>{html.escape(title)}</title>", STYLE, f'<rect class="page" width="{WIDTH}" height="{height}"/>',
             f'<text class="title" x="16" y="28">{html.escape(title)}</text>']
    at = 16
    for kind, name in enumerate(names):
        parts += [f'<circle class="d{kind}" cx="{at + 5}" cy="46" r="4"/>', f'<text x="{at + 14}" y="50">{html.escape(name)}</text>']
        at += 34 + round(6.3 * len(name))
    points = [p for _, rows in jobs for p in rows]
    panel = Panel((16, 64, 560, 324), "Hours and money of each fleet", (min(p[1] for p in points), max(p[1] for p in points), True),
                  (min(p[2] for p in points), max(p[2] for p in points), True), ("hours", "money"))
    for kind, (name, rows) in reversed(list(enumerate(jobs))):
        best = [k for k, row in enumerate(rows) if (name, row[0]) in chosen]
        panel.line([(h, m) for _, h, m in rows], kind, [(f"{n}", f"{name}, {n} instances: {h:.2f} hours, {m:.2f}") for n, h, m in rows], best)
    parts += panel.parts
    head, lines = shares
    numbers = [p for _, rows in lines for p in rows]
    lowest = 10 * math.floor(min(s for _, s in numbers) / 10)
    panel = Panel((588, 64, 356, 324), head, (min(n for n, _ in numbers), max(n for n, _ in numbers), True), (min(lowest, 90), 100, False),
                  ("instances", "%"))
    for name, rows in reversed(lines):
        panel.line(rows, names.index(name), [("", f"{name}, {n} instances: {s:.2f} %") for n, s in rows])
    parts += panel.parts
    if trace:
        head, segments = trace
        begin = first_days(segments, 14 * 86400)
        panel = Panel((16, 400, WIDTH - 32, 208), head, (0, sum(s for s, _ in begin) / 86400, False), (0, max(n for _, n in begin), False),
                      ("days", "instances"))
        panel.steps(begin, 86400)
        parts += panel.parts
    return "\n".join([*parts, "</svg>"]) + "\n"
