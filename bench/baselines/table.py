# SPDX-License-Identifier: MIT
"""Computes medians and spreads of repeated runs, and makes tables in Markdown."""
import math
import statistics


class Samples:
    """The results of several runs of one case."""

    def __init__(self, values=()):
        self.values = [float(v) for v in values]

    def add(self, value):
        value = float(value)
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"expected a number from 0, got {value}")
        self.values.append(value)

    def __len__(self):
        return len(self.values)

    @property
    def median(self):
        return statistics.median(self.values)

    def text(self):
        """Returns the median, with the minimum and maximum in brackets if there are several runs."""
        if not self.values:
            return "-"
        if len(self.values) == 1:
            return number(self.median)
        return f"{number(self.median)} ({number(min(self.values))} to {number(max(self.values))})"


def number(value):
    """Formats a value with at least three digits, without an exponent."""
    value = float(value)
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def ratio(ours, theirs):
    """Returns the ratio of the two medians, or "-" if one of them has no runs."""
    if not len(ours) or not len(theirs) or theirs.median == 0:
        return "-"
    return f"{ours.median / theirs.median:.2f}"


def better(candidates):
    """Returns the candidate with the highest median, or None if no candidate has runs."""
    there = [c for c in candidates if len(c)]
    return max(there, key=lambda c: c.median) if there else None


def markdown(head, rows):
    """Formats a table. Each column is as wide as its widest cell. The first column is left-aligned, the rest
    right-aligned."""
    cells = [[str(c) for c in row] for row in [head, *rows]]
    if any(len(row) != len(head) for row in cells):
        raise ValueError(f"expected {len(head)} cells in each row")
    widths = [max(3, *(len(row[k]) for row in cells)) for k in range(len(head))]
    lines = ["| " + " | ".join(c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths))) + " |"
             for row in cells]
    rule = "|" + "|".join(("-" * (w + 2)) if k == 0 else ("-" * (w + 1) + ":") for k, w in enumerate(widths)) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
