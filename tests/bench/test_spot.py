#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# fast
"""Tests bench/scaling/spot_traces.py and spot_model.py: reads damaged traces, compares the statistics and the model with
numbers that are calculated by hand, and the model with simulations that move in small steps of time."""
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "bench" / "scaling"))
import spot_model  # noqa: E402
import spot_traces  # noqa: E402
from spot_model import Replay, Rules  # noqa: E402

GOOD = {"metadata": {"gap_seconds": 300}, "data": [4, 4, 2, 0, 3]}


class Traces(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "trace.json"

    def read(self, text):
        self.path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return spot_traces.read(self.path)

    def refused(self, text, line, expected, got=""):
        with self.assertRaises(spot_traces.TraceError) as caught:
            self.read(text)
        why = str(caught.exception)
        self.assertTrue(why.startswith(f"[{self.path} line {line}] expected {expected}"), why)
        self.assertIn(f"got {got}", why)

    def test_published_format(self):
        trace = self.read(json.dumps({**GOOD, "prices": [1, 1, 2.5, 100, 1]}))
        self.assertEqual((trace.gap, trace.counts, trace.most), (300, [4, 4, 2, 0, 3], 4))
        self.assertEqual(trace.price(), (4 * 1 + 4 * 1 + 2 * 2.5 + 3 * 1) / 13)  # each instance pays the price of its sample
        self.assertIsNone(self.read(json.dumps(GOOD, indent=1)).price())
        self.assertEqual(self.read('{"data": [1.0], "other": {"a": [1]}, "metadata": {"gap_seconds": 0.5, "b": 1}}').counts, [1])

    def test_damaged_json(self):
        text = json.dumps(GOOD, indent=1)  # "data" begins on line 5, its samples on lines 6 to 10
        for end in range(1, len(text)):
            with self.assertRaises(spot_traces.TraceError):
                self.read(text[:end])
        self.refused(text[:text.index("2")], 8, "a whole number of instances", "the end of the file. hint: the file is incomplete")
        self.refused("", 1, "{ of a trace", "the end of the file")
        self.refused("[1, 2]", 1, "{ of a trace", "'['")
        self.refused(text.replace("2,", "2"), 9, "a comma or ] after a sample", "'0'")
        self.refused(text.replace("2,", "two,"), 8, "a whole number of instances", "Expecting value")
        self.refused(text + "\n\nmore", 14, "the end of the file", "'more'")
        self.refused(text[:-1] + ', "data": [1]}', 12, "a name, each once", '"data"')
        self.refused(b'{"data":\n[1, \xff]}', 2, "text in UTF-8", "byte 0xff")
        self.refused('{"other":\n' + "[" * 200000, 2, "the value of other", "")

    def test_wrong_values(self):
        text = json.dumps(GOOD, indent=1)
        for wrong in ("-1", "1.5", "true", "null", '"4"', "[4]", "1e9", "100001"):
            self.refused(text.replace("2,", wrong + ","), 8, "a whole number of instances from 0 to 100000 at sample 2")
        for wrong in ("NaN", "Infinity", "-Infinity", "9" * 5000):
            self.refused(text.replace("2,", wrong + ","), 8, "a whole number of instances")
        for wrong in ("0", "-300", '"300"', "true", "null", "86401", "1e400", "5e-324", "0.0009"):
            self.refused(text.replace("300", wrong), 2, "gap_seconds from 0.001 to 86400")
        self.refused('{"metadata":\n[],\n"data": [1]}', 2, "gap_seconds", "[]")
        self.refused('{"metadata": {},\n"data": [1]}', 1, "gap_seconds", "null")
        self.refused('{"metadata": {"gap_seconds": 1},\n"data":\n4}', 3, "[ of a list", "'4'")
        self.refused('{"data": [1]}', 1, '"metadata"', '"data"')
        self.refused('{"metadata": {"gap_seconds": 1}}', 1, '"data"', '"metadata"')
        self.refused('{"metadata": {"gap_seconds": 1}, "data": []}', 1, "a sample with an instance", "no samples")
        self.refused('{"metadata": {"gap_seconds": 1}, "data": [0, 0]}', 1, "a sample with an instance", "2 samples without one")
        self.refused('{"metadata": {"gap_seconds": 1}, "data": [1, 1], "prices": [1]}', 1, "as many prices as samples, 2", "1")
        self.refused('{"metadata": {"gap_seconds": 1}, "data": [1], "prices": [-1]}', 1, "a price from 0 upwards at sample 0", "-1")

    def test_sizes(self):
        most, spot_traces.MOST_SAMPLES = spot_traces.MOST_SAMPLES, 5
        self.addCleanup(setattr, spot_traces, "MOST_SAMPLES", most)
        self.read(json.dumps(GOOD))
        self.refused(json.dumps({**GOOD, "data": [1] * 6}), 1, "at most 5 samples", "more")
        big, spot_traces.MOST_BYTES = spot_traces.MOST_BYTES, 1 << 20
        self.addCleanup(setattr, spot_traces, "MOST_BYTES", big)
        for path, why in ((self.path, "at most 1 MiB"), (self.path.parent, "a trace of Spot capacity"), (self.path.parent / "no", "No such file")):
            self.path.write_bytes(b" " * (1 << 20) + b"{")
            with self.assertRaisesRegex(spot_traces.TraceError, why):
                spot_traces.read(path)

    def test_statistics(self):
        trace = self.read(json.dumps(GOOD))
        zone = trace.statistics()  # 13 instances for 300 s each; 2 and 2 are lost
        self.assertEqual((zone.instances, zone.available, zone.together), (4, 13 / 20, 2))
        self.assertAlmostEqual(zone.losses, 4 / (13 * 300 / 3600))
        self.assertEqual(trace.segments(4), [(600, 4), (300, 2), (300, 0), (300, 3)])
        self.assertEqual(trace.segments(2), [(900, 2), (300, 0), (300, 2)])
        self.assertEqual(trace.segments(10), [(600, 10), (300, 5), (300, 0), (300, 7)])

    def test_bill(self):
        trace = spot_traces.SpotTrace(1800, [16, 1, 0, 4], [1, 10, 99, 2], "a")
        self.assertEqual(trace.price(), (16 + 10 + 8) / 21)
        bill = trace.bill(16)
        self.assertEqual([bill(0, 1800), bill(0, 3600), bill(900, 1800), bill(3600, 900)], [8, 13, 4 + 2.5, 0])
        self.assertAlmostEqual(bill(6300, 2 * 7200 + 1800), 2 * 17 + 2 + 4)  # the trace repeats
        self.assertEqual([trace.bill(2)(0, 7200), trace.bill(32)(0, 7200)], [1 + 5 + 2, 2 * 17])
        # 10 units of work cost their seconds at each start.
        rules = Rules(0, 0, 0, 1)
        replay = Replay([(1800, 2), (1800, 1)], lambda n: n, rules)
        prices = spot_traces.SpotTrace(1800, [2, 1], [3, 30])
        self.assertAlmostEqual(replay.outcome(5400, prices.bill(2)).money, 3 + 15)

    def test_several_zones(self):
        one = spot_traces.SpotTrace(300, [1, 0, 1, 1], [1.0] * 4, "a")
        two = spot_traces.SpotTrace(600, [2, 0, 0], [4.0] * 3, "b")
        both = spot_traces.add([one, two])
        self.assertEqual((both.gap, both.counts), (300, [3, 2, 1, 1]))
        self.assertEqual(both.prices, [3, 4, 1, 1])
        self.assertIs(spot_traces.add([one]), one)

    def test_generated_traces_have_the_statistics_of_their_zone(self):
        for name, zone in spot_traces.ZONES.items():
            trace = spot_traces.zone_trace(name, days=1500, seed=1)
            found, groups = trace.statistics(), max(1, round(zone.instances / zone.together))
            self.assertEqual(found.instances, zone.instances)
            # 1500 days have thousands of changes; changes between two samples are not seen.
            self.assertAlmostEqual(found.available, zone.available, delta=0.03)
            self.assertAlmostEqual(found.losses / zone.losses, 1, delta=0.08)
            self.assertAlmostEqual(found.together * groups / zone.instances, 1, delta=0.15)
        self.assertEqual(spot_traces.zone_trace(name, 20, 5).counts, spot_traces.zone_trace(name, 20, 5).counts)
        self.assertNotEqual(spot_traces.zone_trace(name, 20, 5).counts, spot_traces.zone_trace(name, 20, 6).counts)

    def test_program(self):
        program = [sys.executable, ROOT / "bench" / "scaling" / "spot_traces.py"]

        def call(*words, code=0):
            done = subprocess.run([*program, *words], text=True, capture_output=True, timeout=300, check=False)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            return done
        self.path.write_text(call("--generate", "us-west-2c-4", "--days", "3").stdout)
        self.assertRegex(call(self.path).stdout, r"\| \S+ \| 3\.0 \| 4 \| \d+\.\d % \|")
        self.assertIn("expected one of us-east-2b-16", call("--generate", "moon", code=1).stderr)
        call(code=2)
        call("--generate", "us-west-2c-4", "--days", "0", code=2)


def ticking(changes, pause, rules, seconds, tick):
    """Simulates a job in steps of time, without the model's formulas. changes: increasing times. Returns the seconds of work that
    are kept until the last change."""
    done, portion, saving, waiting, place, now = 0.0, 0.0, 0.0, pause, 0, 0.0
    while now < seconds:
        if place < len(changes) and now >= changes[place]:
            portion, saving, waiting, place = 0.0, 0.0, pause, place + 1
        if waiting > 0:
            waiting -= tick
        elif portion < rules.interval - 1e-9:
            portion += tick
        else:
            saving += tick
        if portion >= rules.interval - 1e-9 and saving >= rules.save - 1e-9:
            done, portion, saving = done + rules.interval, 0.0, 0.0
        now += tick
    return done


class Model(unittest.TestCase):
    def test_by_hand(self):
        rules = Rules(loss=10, join=20, start=30, interval=4, save=1)
        self.assertEqual([spot_model.kept(s, 10, rules) for s in (5, 10, 14, 15, 24.9, 25)], [0, 0, 0, 4, 8, 12])
        self.assertEqual((rules.pause(0, 3), rules.pause(2, 3), rules.pause(3, 2)), (30, 20, 10))
        # 100 s with 2 instances after the trace's end with 1: 16 portions of 4 s. 60 s with 1: 10 portions.
        replay = Replay([(100, 2), (60, 1)], lambda n: 10 * n, rules)
        self.assertEqual(replay.done, [0, 16 * 4 * 20, 16 * 4 * 20 + 10 * 4 * 10])
        self.assertAlmostEqual(replay.share, (1280 + 400) / (2000 + 600))
        # 80 units are a portion; it needs no save after it. The work of a whole pass ends in its last second.
        self.assertEqual(replay.end_of(0, 80), (20 + 4, 2 * 24))
        self.assertEqual(replay.end_of(0, 81), (20 + 4 + 1 + 0.05, 2 * 25.05))
        self.assertEqual(replay.end_of(0, 1680), (100 + 10 + 49, 200 + 59))
        self.assertEqual(replay.end_of(0, 3 * 1680 + 80), (3 * 160 + 24, 3 * 260 + 48))
        self.assertEqual(replay.end_of(100, 400 + 80), (60 + 24, 60 + 48))
        self.assertIsNone(Replay([(5, 1), (5, 0)], lambda n: n, rules).outcome(1))

    def test_best_interval(self):
        self.assertAlmostEqual(spot_model.best_interval(2, 3600), math.sqrt(2 * 2 * 3600), delta=3)  # Young's first order
        for save, mean in ((2, 3600), (30, 3600), (60, 600)):
            best = spot_model.best_interval(save, mean)
            here = spot_model.kept_share(1 / mean, 50, best, save)
            for other in (0.8 * best, 1.25 * best):
                self.assertGreater(here, spot_model.kept_share(1 / mean, 50, other, save))
        self.assertEqual(spot_model.best_interval(100, 10), 10)

    def test_random_changes(self):
        """The formula is within 2 % (relative) of simulations with random times."""
        draw = random.Random(7)
        for pause, interval, save, mean in ((55, 120, 2, 900), (55, 20, 2, 300), (1, 0.5, 0, 100), (5, 60, 6, 120)):
            rules, changes, at = Rules(pause, pause, pause, interval, save), [], 0.0
            for _ in range(2000 if interval > 1 else 500):
                at += draw.expovariate(1 / mean)
                changes.append(at)
            share = ticking(changes, pause, rules, at, min(interval, save or 1, 1) / 2) / at
            formula = spot_model.kept_share(1 / mean, pause, interval, save)
            self.assertAlmostEqual(share / formula, 1, delta=0.02 if mean > 200 else 0.05, msg=(pause, interval, save, mean))
        self.assertEqual(spot_model.kept_share(0, 55, 98, 2), 0.98)
        self.assertEqual(spot_model.kept_share(10, 55, 98, 2), 0)

    def test_traces(self):
        """The replay of random traces ends within 0.1 % of a simulation that moves in small steps."""
        for seed in range(12):
            draw = random.Random(seed)
            segments = [(draw.randint(2, 30) * 5, n) for n in [draw.randint(0, 4) for _ in range(8)] + [4]]
            rules = Rules(draw.choice((0.5, 5)), draw.choice((1.5, 10)), draw.choice((10, 20)), draw.choice((0.5, 10, 30)), draw.choice((0, 2)))
            replay = Replay(segments, lambda n: 3.0 * n, rules)
            begin, work = draw.randint(0, int(replay.time[-1]) - 1), draw.uniform(0.1, 3) * replay.done[-1]
            got = replay.end_of(begin, work)
            self.assertAlmostEqual(got[0], self.walk(replay.segments, rules, begin, work), delta=max(0.1, 0.001 * got[0]), msg=seed)

    def test_whole_portions(self):
        """Work of a whole number of portions ends in the segment in which the last of them is done, though sums are rounded."""
        for seed in range(300):
            draw = random.Random(seed)
            fleet, speed, images = draw.randint(1, 16), draw.uniform(50, 5000), draw.randint(1000, 2000000)
            rules = Rules(5, 7, 11, images / speed, draw.choice((0, 2)))
            portion = rules.interval + rules.save
            segments = [(draw.uniform(0, 6) * portion, n) for _ in range(draw.randint(1, 9)) for n in (fleet, 0)]
            segments[0] = (rules.start + 2.5 * portion, fleet)
            replay, whole = Replay(segments, lambda n, a=speed: a if n else 0.0, rules), sum(s for s, _ in segments)
            self.assertEqual(replay.time[-1], whole)
            counts = [round(spot_model.kept(s, rules.start, rules) / rules.interval) if n else 0 for s, n in segments]
            for k in (1, counts[0], sum(counts), 3 * sum(counts), draw.randint(1, 400)):
                place, at, left = 0, 0.0, k
                while counts[place % len(counts)] < left:
                    left, at, place = left - counts[place % len(counts)], at + segments[place % len(counts)][0], place + 1
                expected = at + rules.start + left * portion - rules.save
                for work in (k * images, k * rules.interval * speed, images * float(k) * (1 + 2e-16), images * k * (1 - 2e-16)):
                    self.assertAlmostEqual(replay.end_of(0, work)[0], expected, delta=1e-6 * expected, msg=(seed, k))
                    replay.outcome(work)

    def test_no_change(self):
        """A fleet without a change is the same as one with no losses, also if an interval is longer than the trace."""
        for rules in (Rules(1, 2, 50, 0.5), Rules(55, 27, 55, 98, 2), Rules(55, 27, 55, 1e6, 2)):
            got = Replay([(3600, 2)], lambda n: 10 * n, rules).outcome(36000000)
            same = spot_model.at_random(2, 0, 1, lambda n: 10 * n, rules, 36000000)
            for name in ("share", "instances", "changes", "hours", "late_hours", "instance_hours"):
                self.assertAlmostEqual(getattr(got, name), getattr(same, name), places=6, msg=name)
        # The end and the begin of this trace are one time of 70 s with 2 instances: a loss and a join in 100 s.
        replay = Replay([(20, 2), (30, 1), (50, 2)], lambda n: n, Rules(10, 20, 30, 1))
        self.assertEqual((replay.done, replay.changes), ([0, 20, 20 + 2 * 50], 2))
        self.assertEqual(replay.end_of(0, 120), (10 + 20 + 20 + 50, 30 + 140))

    @staticmethod
    def walk(segments, rules, begin, work, tick=0.05):
        """Returns the time until a job has done this work, in steps of time."""
        ticks = [(n, rules.pause(before, n)) for (_, before), (s, n) in zip([segments[-1], *segments], segments) for _ in range(round(s / tick))]
        starts, at = set(), 0
        for seconds, _ in segments:
            starts.add(at)
            at += round(seconds / tick)
        ends = sorted(starts)
        place, done, portion, saving, waiting, count = round(begin / tick), 0.0, 0.0, 0.0, None, 0
        while True:
            n, pause = ticks[place % len(ticks)]
            if waiting is None or place % len(ticks) in starts:
                portion, saving, waiting = 0.0, 0.0, pause
            if waiting > 1e-9:
                waiting -= tick
            elif n and portion < rules.interval - 1e-9:
                portion += tick
            elif n:
                saving += tick
            count, place = count + 1, place + 1
            left = next((t for t in ends if t > (place - 1) % len(ticks)), len(ticks)) - (place - 1) % len(ticks) - 1
            # The model counts the work of a portion only if the whole portion is kept.
            if done + portion * 3.0 * n >= work - 1e-6 and left * tick >= rules.interval - portion + rules.save - 1e-6:
                return count * tick
            if n and portion >= rules.interval - 1e-9 and saving >= rules.save - 1e-9:
                done, portion, saving = done + rules.interval * 3.0 * n, 0.0, 0.0

    def test_independent_instances(self):
        rules = Rules(1, 2, 50, 0.5)
        got = spot_model.at_random(16, 0.1, 0.5, lambda n: 10 * n, rules, 36000)
        self.assertAlmostEqual(got.instances, 16 / 1.05)
        self.assertAlmostEqual(got.changes, 2 * 1.6 / 1.05)
        self.assertAlmostEqual(got.share, spot_model.kept_share(3.2 / 1.05 / 3600, 1.5, 0.5))
        self.assertAlmostEqual(got.hours, 36000 / (got.share * 160 / 1.05) / 3600)
        self.assertAlmostEqual(got.instance_hours, got.hours * got.instances)
        self.assertIsNone(spot_model.at_random(256, 60, 0, lambda n: n, Rules(55, 55, 55, 60, 2), 1))
        self.assertEqual(spot_model.at_random(8, 0, 1, lambda n: n, rules, 28800).hours, 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
