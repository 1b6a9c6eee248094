#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests tutti-plan: compares its table with numbers calculated by hand, reads the log of a real run, and tests bad
arguments."""
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build"))
PLAN = ROOT / "tools" / "tutti-plan"
HOST = ["--price", "2", "--network-gbit", "8"]


class Plan(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def plan(self, *arguments, code=0, tells=""):
        done = subprocess.run([sys.executable, PLAN, *[str(a) for a in arguments]], text=True, capture_output=True, timeout=300)
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stdout}{done.stderr}")
        self.assertIn(tells, done.stdout if code == 0 else done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done.stdout

    def one_card(self, text):
        """Returns the last column for types with several network cards: the efficiency with one card."""
        return [float(row) for row in re.findall(r"^\| \d+ \|.*\| (\S+) % \|$", text, re.M)]

    def rows(self, text):
        found = re.findall(r"^\| (\d+) \| (\S+) \| (\S+) \| (\S+) % \| (\S+) \| (\S+) \|$", text, re.M)
        return {int(row[0]): [float(x) for x in row[1:]] for row in found}

    def file(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def log(self, speeds, name="log.jsonl", **start):
        first = {"event": "start", "world": 1, "train_images": 1000, "options": {"batch-size": 10, "global-batch-size": 10,
                                                                                "model": "resnet18"}, **start}
        steps = [{"event": "step", "images_per_second": s} for s in speeds]
        return self.file(name, "".join(json.dumps(e) + "\n" for e in [first, *steps]))

    def test_one_instance(self):
        # 90 epochs of 4000 images at 100 images/s take 3600 s. With 10 minutes before, that is 7/6 hours at a price of
        # 2, plus 1 for the cluster.
        rows = self.rows(self.plan("100:10", *HOST, "--nodes", 1, "--images", 4000))
        self.assertEqual(rows, {1: [10, 100, 100, 1, 2.33]})
        rows = self.rows(self.plan("100:10", *HOST, "--nodes", 1, "--images", 4000, "--hourly-extra", 1, "--setup-minutes", 30,
                                   "--evaluation-minutes", 30))
        self.assertEqual(rows[1][-1], 6)

    def test_several_instances(self):
        # One bucket of 1 GB is final with the last gradient. 4 instances send 2 * 3/4 GB at 1 GB/s, without latency.
        trace = self.file("trace.json", json.dumps({"images": 10, "backward_end": 0.9, "update": 0.1,
                                                    "buckets": [{"bytes": 1e9, "ready": 0.9}]}))
        rows = self.rows(self.plan(trace, *HOST, "--nodes", "1,4", "--images", 3600, "--epochs", 1, "--latency-us", 0,
                                   "--jitter", 0, "--network-efficiency", 1, "--setup-minutes", 0))
        self.assertEqual(rows, {1: [10, 10, 100, 0.1, 0.2], 4: [40, 16, 40, 0.06, 0.5]})

    def test_range(self):
        """The table lies inside of the range, which an option narrows."""
        arguments = ["100:10", *HOST, "--nodes", "1,16", "--images", 40000]
        found = []
        for more in ([], ["--jitter", 0.01], ["--jitter", 0.01, "--network-efficiency", 0.9]):
            text = self.plan(*arguments, *more)
            low, high = map(float, re.search(r"^range with 16: (\S+) to (\S+) images/s", text, re.M).groups())
            self.assertTrue(low <= self.rows(text)[16][1] <= high, text)
            found.append(high - low)
        self.assertEqual(found, sorted(found, reverse=True))
        self.plan(*arguments, "--devices", 8, "--host-link-gb", 60, tells="host loss 0 to 0.13, channels 2 to 16")

    def test_effect_of_one_more_instance(self):
        text = self.plan("100:10", *HOST, "--nodes", "1,2,4,8,16", "--images", 40000)
        rows = self.rows(text)
        self.assertEqual(list(rows), [1, 2, 4, 8, 16])
        efficiencies = [row[2] for row in rows.values()]
        self.assertEqual(efficiencies, sorted(efficiencies, reverse=True))
        faster = self.rows(self.plan("100:10", "--price", 2, "--network-gbit", 800, "--nodes", "16", "--images", 40000))
        self.assertGreater(faster[16][1], rows[16][1])
        smaller = self.rows(self.plan("100:10", *HOST, "--bytes", 2, "--nodes", "16", "--images", 40000))
        self.assertGreater(smaller[16][1], rows[16][1])
        # The devices of an instance first sum inside the instance.
        four = self.rows(self.plan("100:10", *HOST, "--devices", 4, "--nodes", "1,2", "--images", 40000))
        self.assertEqual(four[1][0], 40)
        self.assertTrue(300 < four[1][1] <= 400)

    def test_choice(self):
        arguments = ["100:10", *HOST, "--network-gbit", 1000, "--nodes", "1,2,4", "--images", 40000, "--setup-minutes", 0]
        rows = self.rows(self.plan(*arguments))
        text = self.plan(*arguments, "--within-hours", rows[2][3] + 0.01, "--budget", rows[2][4] + 0.01)
        self.assertIn(f"hours: 2 for {rows[2][4]:.2f}", text)
        self.assertIn(f"at most: 2 in {rows[2][3]:.2f} hours", text)
        # The time before the first step counts too.
        text = self.plan(*arguments, "--setup-minutes", 60, "--within-hours", rows[2][3] + 0.01)
        self.assertIn("hours: 4 for", text)
        text = self.plan(*arguments, "--within-hours", 0.001, "--budget", 0.001)
        self.assertIn("within 0.001 hours: no row of the table ends in this time\n", text)
        self.assertIn("for 0.001 at most: every row of the table costs more\n", text)

    def test_types(self):
        self.plan("668:256", "--type", "p3.16xlarge", tells="p3.16xlarge at 24.48 an hour, 8 devices, 25 Gbit/s")
        self.plan("668:256", "--type", "p3.16xlarge", "--price", 9, tells="p3.16xlarge at 9 an hour, 8 devices")
        own = self.file("own.csv", "# mine\ntype,price_per_hour,devices,network_gbit\nbox,0.5,2,10\n")
        self.plan("668:256", "--type", "box", "--types", own, tells="box at 0.5 an hour, 2 devices, 10 Gbit/s")
        self.plan("668:256", "--type", "bux", "--types", own, code=2, tells="[--type] expected one of box, got bux")
        self.plan("668:256", "--types", own, code=2, tells="[--types] expected --type with it")
        head = "type,price_per_hour,devices,network_gbit\n"
        for text in ("", "a,b\n", head + "x,1,1\n", head + "x,y,1,1\n", head + "x,-1,1,1\n", head + "x,1,0,1\n", head + ",1,1,1\n",
                     head + "x,1,1,nan\n", head + "x,1,1,1\nx,1,1,1\n"):
            self.plan("668:256", "--type", "x", "--types", self.file("bad.csv", text), code=2, tells="expected")
        self.plan("668:256", "--type", "x", "--types", self.folder, code=2, tells="[--types] expected a file")

    def test_one_network_card(self):
        several = self.file("several.csv", "type,price_per_hour,devices,network_gbit,card_gbit\nbox,0.5,8,400,100\nsmall,0.5,8,10,10\nold,0.5,1,100,\n")
        text = self.plan("2500:256", "--type", "box", "--types", several, "--nodes", "1,8", tells="400 Gbit/s (100 a network card)")
        one = self.one_card(text)
        self.assertEqual([one[0], len(one)], [100, 2])
        # The result is the same as for a type that has only that bandwidth.
        alone = self.rows(self.plan("2500:256", "--price", 1, "--devices", 8, "--network-gbit", 100, "--nodes", "1,8"))
        self.assertEqual(one, [row[2] for row in alone.values()])
        for name in ("small", "old"):
            self.assertEqual(self.one_card(self.plan("2500:256", "--type", name, "--types", several, "--nodes", "1,8")), [])
        self.assertEqual(self.one_card(self.plan("2500:256", "--type", "box", "--types", several, "--network-gbit", 50)), [])
        for bad in ("x,1,1,1,0", "x,1,1,1,2", "x,1,1,1,nan", "x,1,1,1,1,1"):
            path = self.file("bad.csv", "type,price_per_hour,devices,network_gbit,card_gbit\n" + bad + "\n")
            self.plan("668:256", "--type", "x", "--types", path, code=2, tells="expected")

    def test_unknown_price(self):
        path = self.file("own.csv", "type,price_per_hour,devices,network_gbit\nbox,,2,10\n")
        self.plan("668:256", "--type", "box", "--types", path, code=2, tells="[--price] expected the price of box")
        self.plan("668:256", "--type", "box", "--types", path, "--price", 3, tells="box at 3 an hour")

    def test_every_type_of_the_templates_is_known(self):
        sys.path.insert(0, str(ROOT / "infra" / "cloudformation" / "source"))
        import generate
        offered = {name: kind for name, kind in generate.instance_types()}
        batch = (ROOT / "infra" / "batch" / "batch.yaml").read_text()
        for name, gpus in re.findall(r'^    ([a-z0-9-]+\.\w+): \{Vcpus: .*Gpus: "(\d+)"\}$', batch, re.M):
            offered[name] = "gpu" if gpus != "0" else "cpu"
        self.assertGreater(len(offered), 100)
        with open(ROOT / "tools" / "instance-types.csv", encoding="utf-8", newline="") as file:
            known = {row["type"]: row for row in csv.DictReader(line for line in file if not line.startswith("#"))}
        self.assertEqual(sorted(set(offered) - set(known)), [])
        for name, kind in offered.items():
            self.assertTrue(kind == "gpu" or known[name]["devices"] == "1", name)
        for name, cards in (("p4d.24xlarge", 4), ("p4de.24xlarge", 4), ("p5.48xlarge", 32), ("p5e.48xlarge", 32), ("p5en.48xlarge", 16),
                            ("p6-b200.48xlarge", 8)):
            self.assertEqual(float(known[name]["network_gbit"]), cards * float(known[name]["card_gbit"]), name)
        self.plan("2500:256", "--type", "p6-b300.48xlarge", "--nodes", "1,8", tells="6400 Gbit/s")
        self.plan("300:256", "--type", "c8g.48xlarge", "--nodes", "1,8", tells="50 Gbit/s")
        self.plan("300:256", "--type", "m7g.16xlarge", code=2, tells="[--price] expected the price of m7g.16xlarge")
        self.plan("300:256", "--type", "m7g.16xlarge", "--price", 3, tells="m7g.16xlarge at 3 an hour, 1 device, 30 Gbit/s")

    def spot(self, text):
        """Returns {(instances, job): numbers of the row}."""
        found = re.findall(r"^\| (\d+) \| (\S+) \| (\S+) \| (\D\S* ?.*?) \| (\S*) \| (\S+) % \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$", text, re.M)
        return {(int(row[0]), row[3]): [row[4], *(float(x) for x in (*row[1:3], *row[5:]))] for row in found}

    def test_spot_trace(self):
        # A day of 30 minutes with an instance and 30 without one. 180 s after each start of the first instance are lost.
        trace = self.file("trace.json", json.dumps({"metadata": {"gap_seconds": 1800}, "data": [1, 0] * 24, "prices": [0.5, 9] * 24}))
        arguments = ["100:10", *HOST, "--nodes", 1, "--images", 3600, "--epochs", 100, "--setup-minutes", 0, "--restart-seconds", 180]
        text = self.plan(*arguments, "--spot-trace", trace, tells="1.0 days of 1 instances, 50.0 % available")
        self.assertIn("; 0.5 an hour;", text)
        rows = self.spot(text)
        self.assertEqual(list(rows), [(1, "tutti"), (1, "restarts, best interval"), (1, "restarts, each epoch")])
        checkpoint, instances, changes, useful, hours, late, money, an_epoch = rows[1, "tutti"]
        self.assertEqual((checkpoint, instances, changes, useful), ("", 0.5, 1.96, 90))  # 47 changes in 24 hours
        # 1620 s an hour do 162,000 images, so 360,000 need two hours and 540 s of the third, if the job starts with an instance.
        self.assertTrue(2.15 <= hours <= late <= 3.2, rows)
        self.assertAlmostEqual(money / 100, an_epoch, delta=0.01)
        # An epoch is 36 s and a checkpoint 2 s: 42 of them fit into 1620 s.
        self.assertEqual(rows[1, "restarts, each epoch"][0], "0.6")
        self.assertAlmostEqual(rows[1, "restarts, each epoch"][3], 100 * 42 * 36 / 1800)
        self.assertEqual(self.spot(self.plan(*arguments, "--spot-trace", trace, "--checkpoint-minutes", 5))[1, "restarts, each 5 min"][3],
                         round(100 * 5 * 300 / 1800, 2))
        # 1000 s between two checkpoints are all the time that there is; with 30 minutes nothing is kept.
        self.assertIn("| 1 | | | restarts, each 30 min | 30.0 | 0 % | never | | | |", self.plan(*arguments, "--spot-trace", trace, "--checkpoint-minutes", 30))
        self.plan(*arguments, "--spot-trace", trace, "--spot-price", 3, tells="; 3 an hour;")
        two = self.spot(self.plan(*arguments, "--spot-trace", trace, "--spot-trace", trace, "--nodes", 2))[2, "tutti"]
        self.assertEqual(two[1], 1)

    def test_spot_of_whole_epochs(self):
        # 18 epochs are a whole number of portions for the job with a checkpoint each epoch.
        text = self.plan("668:256", "--price", 3, "--devices", 1, "--network-gbit", 10, "--spot-price", 1, "--images", 88064, "--epochs", 18,
                         "--nodes", "1,2,3,4,8,16", "--spot-trace", "zone:us-east-2b-16")
        self.assertEqual(len(self.spot(text)), 18)

    def test_spot_without_a_change(self):
        trace = self.file("trace.json", json.dumps({"metadata": {"gap_seconds": 300}, "data": [2] * 288, "prices": [0.5] * 288}))
        arguments = ["100:10", *HOST, "--nodes", "1,2", "--images", 1281167]
        got = self.spot(self.plan(*arguments, "--spot-trace", trace))
        self.assertEqual(len(got), 6)
        self.assertEqual(got, self.spot(self.plan(*arguments, "--interruptions-per-hour", 0, "--spot-price", 0.5)))

    def test_spot_prices(self):
        # Half of the time 4 instances at 1, half of the time one at 3; the work is that of 5 days of a trace of 2 hours.
        trace = self.file("trace.json", json.dumps({"metadata": {"gap_seconds": 3600}, "data": [4, 1], "prices": [1, 3]}))
        text = self.plan("100:10", "--price", 2, "--network-gbit", 1000, "--nodes", 4, "--images", 3600000, "--epochs", 60, "--setup-minutes", 0,
                         "--pause-seconds", 0, "--join-seconds", 0, "--spot-trace", trace, tells="; 1.4 an hour;")
        row = self.spot(text)[4, "tutti"]
        self.assertAlmostEqual(row[6] / row[4], (4 + 3) / 2, delta=0.05)

    def test_spot_at_random(self):
        arguments = ["100:10", *HOST, "--nodes", "1,16", "--images", 40000, "--setup-minutes", 0, "--spot-price", 0.5]
        text = self.plan(*arguments, "--interruptions-per-hour", 0)
        for n, row in self.rows(text).items():
            self.assertEqual(self.spot(text)[n, "tutti"][3:6], [100, row[3], row[3]])
            self.assertAlmostEqual(self.spot(text)[n, "tutti"][6], row[4] / 4, delta=0.011)
        often = self.spot(self.plan(*arguments, "--interruptions-per-hour", 0.2))
        self.assertEqual(often[16, "tutti"][2], round(2 * 16 * 0.2 / (1 + 0.2 / 6), 2))
        useful = [often[16, job][3] for job in ("tutti", "restarts, best interval")]
        self.assertTrue(useful[0] > 99 > useful[1] > 50, useful)
        self.assertGreater(often[1, "restarts, best interval"][3], useful[1])
        # A restart for a join takes 11 s, as torchrun's does, and one for a loss 46 s: 28.5 s a change on average.
        same = self.spot(self.plan(*arguments, "--interruptions-per-hour", 0.2, "--restart-seconds", 28.5, "--restart-join-seconds", 28.5))
        self.assertEqual(same[16, "restarts, best interval"], often[16, "restarts, best interval"])

    def test_spot_answers_and_picture(self):
        picture = self.folder / "plan.svg"
        arguments = ["100:10", *HOST, "--nodes", "1,2,4", "--images", 40000, "--setup-minutes", 0, "--spot-price", 0.5, "--picture", picture,
                     "--within-hours", 20, "--budget", 12]
        text = self.plan(*arguments, "--spot-trace", "zone:us-west-2c-4", tells="Spot instances with tutti for")
        self.assertIn("for 12 at most: 4 Spot instances with tutti in", text)
        drawn = xml.etree.ElementTree.fromstring(picture.read_text())
        words = ["".join(e.itertext()) for e in drawn.iter("{http://www.w3.org/2000/svg}text")]
        for word in ("on demand", "tutti", "restarts, best interval", "Useful time", "Hours and money of each fleet", "Spot instances of a fleet of 4"):
            self.assertIn(word, words)
        rings = [e for e in drawn.iter("{http://www.w3.org/2000/svg}circle") if e.get("class") == "best"]
        self.assertEqual(len(rings), len(set(re.findall(r"(\d+) Spot instances with tutti", text))))
        width, height = [float(x) for x in drawn.get("viewBox").split()[2:]]
        places = [(float(x), float(y)) for e in drawn.iter() if e.get("d") for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", e.get("d"))]
        self.assertTrue(places and all(0 <= x <= width and 0 <= y <= height for x, y in places))
        self.assertIn("prefers-color-scheme: dark", picture.read_text())
        # Without Spot instances the picture has the efficiency; a name of a type is text.
        own = self.file("own.csv", "type,price_per_hour,devices,network_gbit\n<b>&,0.5,2,10\n")
        self.plan("668:256", "--type", "<b>&", "--types", own, "--nodes", "3", "--picture", picture)
        self.assertIn("Efficiency", picture.read_text())
        xml.etree.ElementTree.fromstring(picture.read_text())
        self.plan("668:256", *HOST, "--picture", self.folder / "no" / "x.svg", code=2, tells="[--picture] expected a file that can be written")

    def test_spot_refusals(self):
        trace = self.file("trace.json", '{"metadata": {"gap_seconds": 300},\n"data": [4,\n-1]}')
        self.plan("668:256", *HOST, "--spot-price", 1, "--spot-trace", trace, code=3, tells="trace.json line 3] expected a whole number of instances")
        self.plan("668:256", *HOST, "--spot-price", 1, "--spot-trace", self.folder / "none", code=3, tells="expected a trace of Spot capacity")
        self.plan("668:256", *HOST, "--spot-price", 1, "--spot-trace", "zone:moon", code=2, tells="[--spot-trace] expected zone: and one of us-east-2b-16")
        self.plan("668:256", *HOST, "--spot-price", 1, "--spot-trace", "zone:", code=2, tells="us-west-2c-4, got 'zone:'.")
        self.plan("668:256", *HOST, "--spot-trace", "zone:us-west-2c-4", code=2, tells="[--spot-price] expected the price of a Spot instance, because")
        self.plan("668:256", *HOST, "--interruptions-per-hour", 1, code=2, tells="[--spot-price] expected the price of a Spot instance, got none")
        self.plan("668:256", *HOST, "--spot-price", 1, "--interruptions-per-hour", 1, "--spot-trace", "zone:us-west-2c-4", code=2, tells="got both")
        for words in ("--interruptions-per-hour -1", "--interruptions-per-hour x", "--spot-price nan", "--picture plan.png", "--interruptions-per-hour 1 --spot-price 1 --checkpoint-minutes 1e-320",
                      "--pause-seconds -1", "--restart-seconds inf"):
            self.plan("668:256", *HOST, *words.split(), code=2)
        for name in ("spot-price", "checkpoint-minutes", "checkpoint-seconds", "restart-seconds", "restart-join-seconds", "pause-seconds", "join-seconds",
                     "replacement-minutes"):
            self.plan("668:256", *HOST, "--" + name, 1, code=2, tells=f"[--{name}] expected --spot-trace or --interruptions-per-hour with it, got neither.")
        self.plan("668:256", *HOST, "--spot-price", 1, "--spot-trace", "zone:us-west-2c-4", "--replacement-minutes", 1, code=2,
                  tells="[--replacement-minutes] expected --interruptions-per-hour with it, got --spot-trace.")
        self.file("trace.json", '{"metadata": {"gap_seconds": 5e-324}, "data": [1, 0]}')
        self.plan("668:256", *HOST, "--spot-price", 1, "--spot-trace", trace, code=3, tells="expected gap_seconds from 0.001 to 86400, got 5e-324")

    def test_names_that_are_no_text(self):
        name = Path(os.fsdecode(os.fsencode(self.folder) + b"/\xff.json"))
        name.write_text('{"metadata": {"gap_seconds": 300}, "data": [4, 3]}')
        self.plan("668:256", *HOST, "--nodes", 1, "--spot-price", 1, "--spot-trace", name, tells="\\udcff.json: 0.0 days")
        self.plan("668:256", *HOST, "--nodes", 1, "--spot-price", 1, "--spot-trace", str(name) + "x", code=3, tells="\\udcff.jsonx] expected")

    def test_log(self):
        log = self.log([1, 100, 100, 100, 100, 90, 110, 100, 100, 100])  # the first line is from the program's warmup
        text = self.plan(log, *HOST, "--nodes", 1, tells="median of 9 lines, 100.0 images/s on 1 rank")
        self.assertIn("11.69 M parameters", text)
        self.assertIn("90 epochs of 1000 images", text)
        self.plan(self.folder, *HOST, tells="median of 9 lines")
        self.log([100], world=4)
        self.plan(self.folder, *HOST, tells="4 devices")
        self.plan(self.folder, *HOST, "--devices", 6, code=2, tells="[--devices] expected a multiple of the 4 measured ranks")
        with log.open("a") as file:
            file.write('{"event":"step","images_per_sec')  # the run is writing this line
        self.plan(log, *HOST, tells="median of 1 lines")
        small = {"batch-size": 10, "global-batch-size": 10, "network": "resnet_preact"}
        self.plan(self.log([100], options=small), *HOST, code=2, tells="[--parameters] expected the number of parameters of resnet_preact")
        self.plan(self.log([100], options=small), *HOST, "--parameters", 78112, tells="0.08 M parameters")
        for text in ("", "{", "[]\n", "{}\n", '{"event":"start"}\n', "\x00\xff\n"):
            self.plan(self.file("bad.jsonl", text), *HOST, code=3, tells="expected")
        for bad in ([], [0], [-1], ["x"], [float("inf")]):
            self.plan(self.log(bad), *HOST, code=3, tells="expected")
        self.plan(self.log([1], train_images=0), *HOST, code=3, tells="expected")

    def test_log_of_a_run(self):
        program = BUILD / "examples" / "train_imagenet"
        if not program.exists():
            self.skipTest("train_imagenet is not built")
        subprocess.run([program, "--synthetic", "--num_examples", "64", "--num_batches", "4", "--display_every", "1", "-m", "resnet18",
                        "-b", "4", "--image_size", "32", "--log_dir", self.folder / "run"], check=True, capture_output=True, timeout=300)
        text = self.plan(self.folder / "run", "--type", "g4dn.xlarge", "--nodes", "1,2", tells="on 1 rank")
        self.assertEqual([row[0] for row in self.rows(text).values()], [4, 8])

    def test_refusals(self):
        for step in ("668", "668:", ":256", "0:256", "668:-1", "nan:1", "inf:1", "1:2:3", "nothing.json", "/nothing"):
            self.plan(step, *HOST, code=3 if ":" not in step else 2, tells="expected")
        self.plan(self.file("trace.json", '{"images": 0}'), *HOST, code=3, tells="expected")
        self.plan("668:256", code=2, tells="[arguments] expected --type TYPE, or --price and --network-gbit")
        self.plan("668:256", "--price", 1, code=2, tells="[arguments] expected --type")
        for words in ("--nodes 0", "--nodes 1,x", "--nodes 9999999", "--nodes ,", "--price -1", "--epochs 0", "--epochs nan", "--epochs 1e-300", "--images 0.5",
                      "--devices 0", "--network-gbit 0", "--bytes 3", "--model lenet", "--jitter -1", "--network-efficiency 0", "--network-efficiency 1.1", "--within-hours 0", "--what 1"):
            self.plan("668:256", *HOST, *words.split(), code=2)
        self.plan("668:256", *HOST, "--model", "resnet18", "--parameters", 5, code=2, tells="[--parameters] expected either")


if __name__ == "__main__":
    program = unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]], exit=False)
    for case, why in program.result.skipped:
        print(f"SKIP: {case.id()}: {why}")
    sys.exit(1 if not program.result.wasSuccessful() else 77 if program.result.skipped else 0)
