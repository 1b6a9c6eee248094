#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests bench/baselines without the peers: its tables, options and pinned packages, and whole runs with stand-ins for the
programs."""
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
PEERS = ROOT / "bench" / "baselines"
sys.path.insert(0, str(PEERS))

import allreduce  # noqa: E402
from table import Samples, better, markdown, number, ratio  # noqa: E402

# A program that logs its arguments and prints one line with a speed, which depends on the options and the malloc.
STAND_IN = """#!{python}
import json, os, sys
a = dict(zip(sys.argv, sys.argv[1:]))
speed = 100.0
if {torch}:
    speed = {{"eager": 40, "compile": 50}}[a.get("--way", "eager")] + {{"fused": 2, "foreach": 4}}[a.get("--optimizer", "fused")]
    speed += 8 * (a.get("--bf16") == "pure") * (a.get("--precision") == "bf16") + 16 * (os.environ.get("MALLOC_TRIM_THRESHOLD_") is not None)
with open({log!r}, "a") as f:
    f.write(json.dumps([{name!r}, sys.argv[1:], os.environ.get("OMP_NUM_THREADS")]) + "\\n")
with open({log!r}) as f:
    speed += sum(json.loads(l)[0] == "tutti" for l in f) if {name!r} == "tutti" else 0
{body}
print("noise")
print(json.dumps({{"system": {name!r} + " 1 x", "how": "how", "images_per_second": speed, "images_per_cpu_second": speed / 2,
                  "peak_rss_mib": 10}}))
"""


# An mpirun whose sums take 8 ms, with the ring 4 ms and with other algorithms 6 ms; those of tutti 2 ms.
MPIRUN = """#!/bin/sh
case ${{OMPI_MCA_coll_tuned_allreduce_algorithm:-0}} in 0) us=8000 ;; 4) us=4000 ;; *) us=6000 ;; esac
[ "${{OMPI_MCA_coll_tuned_use_dynamic_rules:-0}}" = 1 ] || us=8000
echo "# all-reduce"
echo "    1000000 mpi          1.00     $us.00     1.0 1.0 1.0 1.0 1.00x"
case "$*" in *"--mode all"*) echo "    1000000 {way}          1.00     2000.00     1.0 1.0 1.0 1.0 4.00x" ;; esac
"""


class AllReduce(unittest.TestCase):
    def compare(self, way):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict(
                os.environ, {"PATH": folder + os.pathsep + os.environ["PATH"]}):
            (Path(folder) / "mpirun").write_text(MPIRUN.format(way=way))
            (Path(folder) / "mpirun").chmod(0o755)
            return allreduce.compare("allreduce", 2, 1000000, 1)

    def test_row(self):
        self.assertEqual(self.compare("shm"), ["2.00", "8.00", "4.00 ring", "4.00", "2.00"])

    def test_no_times(self):
        with self.assertRaisesRegex(allreduce.Failed, "no times"):
            self.compare("tree")


class Table(unittest.TestCase):
    def test_numbers(self):
        for value, text in ((0, "0"), (0.01234, "0.0123"), (1.5, "1.50"), (99.96, "100.0"), (123.4, "123"), (1234.4, "1,234"),
                            (1e6, "1,000,000")):
            self.assertEqual(number(value), text)

    def test_samples(self):
        s = Samples([3, 1, 2])
        self.assertEqual((s.median, len(s), s.text()), (2, 3, "2.00 (1.00 to 3.00)"))
        self.assertEqual(Samples([1, 2]).median, 1.5)
        self.assertEqual((Samples([7]).text(), Samples().text()), ("7.00", "-"))
        for bad in (float("nan"), float("inf"), -1):
            with self.assertRaises(ValueError):
                s.add(bad)

    def test_ratio_and_better(self):
        self.assertEqual(ratio(Samples([3, 3, 9]), Samples([2])), "1.50")
        self.assertEqual((ratio(Samples(), Samples([1])), ratio(Samples([1]), Samples([0]))), ("-", "-"))
        a, b = Samples([1, 9, 2]), Samples([3, 3, 3])
        self.assertIs(better([a, b, Samples()]), b)
        self.assertIsNone(better([Samples()]))

    def test_markdown(self):
        self.assertEqual(markdown(["net", "x"], [["long name", 1], ["b", "22222"]]).splitlines(),
                         ["| net       |     x |", "|-----------|------:|", "| long name |     1 |", "| b         | 22222 |"])
        with self.assertRaises(ValueError):
            markdown(["a", "b"], [["1"]])


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.log = self.folder / "log"
        self.environment = {**os.environ, "TUTTI_STEP": str(self.program("step", "tutti")),
                            "TORCH_VENV": str(self.environment_of("torch"))}

    def program(self, path, name, body="", torch=False):
        path = self.folder / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STAND_IN.format(python=sys.executable, log=str(self.log), name=name, body=body, torch=torch))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def environment_of(self, peer, body=""):
        """Makes a complete virtual environment with a stand-in for Python."""
        self.program(f"{peer}/bin/python", peer, body, peer == "torch")
        (self.folder / peer / "ready").write_text((PEERS / "requirements" / f"{peer}.txt").read_text())
        return self.folder / peer

    def run_it(self, *arguments, code=0, **more):
        done = subprocess.run([sys.executable, PEERS / "run.py", *arguments], text=True, capture_output=True, timeout=120,
                              env={**self.environment, **more}, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done

    def input(self, name=""):
        """Makes files in place of the images, and a stand-in for the benchmark programs (Google Benchmark)."""
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        for file in ("data_batch_1.bin", "imagenet-sample.tar"):
            (data / file).touch()
        report = """
name = sys.argv[1].split("^")[1]
print("context", json.dumps({"benchmarks": [{"name": (name if name.startswith(%r) else "other/") + "real_time", "images/s": 1000,
                                             "images/cpu_s": 500}]}))
sys.exit()""" % name
        return {"TUTTI_DATA": str(data), **{f"TUTTI_{p.upper()}": str(self.program(p, p, report)) for p in ("loader", "jpeg")}}

    def calls(self, name):
        return [json.loads(line)[1:] for line in self.log.read_text().splitlines() if json.loads(line)[0] == name]

    def test_programs_run_in_turn_with_best_settings(self):
        out = self.run_it("steps", "--models", "resnet20:8 resnet50:2", "--precisions", "f32 bf16", "--threads", "3", "--repeats", "3",
                          "--malloc", "best", "--tutti", "--backend eigen").stdout
        # The results of tutti count up from 101. The first row has 101, 105 and 109.
        self.assertRegex(out, r"\| ResNet-20 CIFAR +\| +8 \| +f32 \| +3 \| +60\.0 \(60\.0 to 60\.0\) \| +70\.0 \(70\.0 to 70\.0\) \| "
                              r"+105 \(101 to 109\) \| +1\.50 \|")
        self.assertRegex(out, r"\| ResNet-50 224 +\| +2 \| +bf16 \| +3 \| +68\.0 .* 78\.0 .* 108 \(104 to 112\) \| +1\.38 \|")
        self.assertIn("foreach SGD, pure bf16, channels last", out)
        self.assertIn("malloc glibc-keep: MALLOC_TRIM_THRESHOLD_=", out)
        self.assertIn("tutti with --backend eigen", out)
        ours = self.calls("tutti")
        self.assertEqual(len(ours), 12)
        self.assertEqual(ours[0][0], ["--model", "resnet20", "--batch", "8", "--precision", "f32", "--threads", "3", "--seconds", "5",
                                      "--backend", "eigen"])
        # Order in a row: eager, compiled, tutti. All rows run once before any row runs again.
        names = [json.loads(line)[0] for line in self.log.read_text().splitlines()]
        self.assertEqual(names[-36:], ["torch", "torch", "tutti"] * 12)
        timed = self.calls("torch")[-24:]
        self.assertTrue(all(omp == "3" for _, omp in timed))
        self.assertEqual([a[a.index("--way") + 1] for a, _ in timed[:2]], ["eager", "compile"])
        self.assertTrue(all("foreach" in a for a, _ in timed))

    def test_prediction_of_the_net_alone(self):
        serve = """
if sys.argv[1] == "-c":
    sys.exit()
batches = sys.argv[sys.argv.index("--batch") + 1:]
print("ready", flush=True)
for line in sys.stdin:
    batch, seconds = line.split()
    assert batch in batches and float(seconds) == 0.5
    print(json.dumps({"system": sys.argv[2], "batch_ms": 4 * int(batch)}), flush=True)
sys.exit()"""
        peers = {f"{p.upper()}_VENV": str(self.environment_of(p, serve)) for p in ("torch", "onnxruntime")}
        peers["OPENVINO_VENV"] = str(self.environment_of("openvino", "sys.exit('no such processor')"))
        ours = self.program("inference", "tutti", """
print(json.dumps({"system": "tutti", "batch_ms": 2 * int(a["--batch"]), "images_per_second": 1, "images_per_cpu_second": 1, "peak_rss_mib": 1}))
sys.exit()""")
        done = subprocess.run([sys.executable, PEERS / "predict.py", "--net", "--batch", "1", "32", "--repeats", "2", "--seconds", "0.5"], text=True,
                              capture_output=True, timeout=120, check=False,
                              env={**self.environment, **peers, "TUTTI_INFERENCE": str(ours), "TUTTI_EXPORT": str(self.program("export", "export"))})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"\| f32, batch 32 +\| +64\.0 .*\| +128 .*\| +128 .*\| +- \| +2\.00 \|")
        self.assertRegex(done.stdout, r"\| bf16, batch 1 +\| +2\.00 .*\| +4\.00 .*\| +- \| +- \| +2\.00 \|")
        self.assertIn("left out: OpenVINO does not run on this machine", done.stderr)
        self.assertEqual(len(self.calls("tutti")), 8)
        done = subprocess.run([sys.executable, PEERS / "predict.py", "--batch", "1", "32"], text=True, capture_output=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("several sizes only with --net", done.stderr)

    def test_given_settings_are_not_searched_for(self):
        self.run_it("steps", "--models", "resnet18:4", "--precisions", "f32", "--repeats", "1", "--malloc", "glibc", "--optimizer", "fused",
                    "--ways", "eager")
        self.assertEqual(len(self.calls("torch")), 1)
        self.assertIn("fused", self.calls("torch")[0][0])

    def test_busy_cores_and_columns_of_other_frameworks(self):
        out = self.run_it("steps", "--models", "resnet20:8", "--precisions", "f32 bf16", "--threads", "busy", "--repeats", "1", "--malloc", "glibc",
                          "--optimizer", "fused", "--bf16", "pure", "--also", "mxnet tensorflow",
                          MXNET_VENV=str(self.environment_of("mxnet")), TENSORFLOW_VENV=str(self.environment_of("tensorflow"))).stdout
        self.assertIn("MXNet", out)
        self.assertEqual((len(self.calls("mxnet")), len(self.calls("tensorflow"))), (1, 2))  # MXNet runs in f32 only
        self.assertEqual(self.calls("mxnet")[0][0][8], str(len(os.sched_getaffinity(0))))
        left = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "while True: pass"], capture_output=True, check=False)
        self.assertEqual(left.stdout, b"")

    def test_program_that_fails_is_an_error(self):
        self.environment["TUTTI_STEP"] = str(self.program("broken", "tutti", "sys.exit('out of memory')"))
        done = self.run_it("steps", "--models", "resnet20:8", "--precisions", "f32", "--repeats", "1", "--malloc", "glibc", "--optimizer",
                           "fused", code=1)
        self.assertIn("out of memory", done.stderr)
        self.assertEqual(done.stdout, "")
        self.environment["TUTTI_STEP"] = str(self.program("slow", "tutti", "import time; time.sleep(60)"))
        done = self.run_it("steps", "--models", "resnet20:8", "--precisions", "f32", "--repeats", "1", "--malloc", "glibc", "--optimizer",
                           "fused", "--timeout", "1.5", code=1)
        self.assertIn("no result in 1.5 s", done.stderr)

    def test_wrong_options_are_refused(self):
        for wrong, tells in ((["--models", "vgg:1"], "MODEL:BATCH"), (["scaling"], "got 'scaling'"), (["--seeds", "x"], "--seeds"),
                             (["--epochs", "0"], "epoch"), (["--models", "resnet20:0"], "resnet20:0"), (["--models", ""], "one model"),
                             (["--precisions", "f16"], "f32 or bf16"), (["--threads", "-1"], "numbers from 1"), (["--repeats", "0"], "1 repeat"),
                             (["--ways", "jit"], "eager or compile"), (["--also", "jax"], "mxnet or tensorflow"),
                             (["--malloc", "mine"], "unknown"), (["--nice", "20"], "-20 to 19"), (["--seconds", "0"], "seconds"),
                             (["--optimizer", "adam"], "invalid choice")):
            self.assertIn(tells, self.run_it(*wrong, code=2).stderr)
        self.assertFalse(self.log.exists())

    def test_missing_prerequisites(self):
        self.assertIn("step-none", self.run_it(code=3, TUTTI_STEP=str(self.folder / "step-none")).stderr)
        self.assertIn("train-none", self.run_it("recipe", code=3, TUTTI_TRAIN=str(self.folder / "train-none")).stderr)
        nowhere = {**self.input(), "TUTTI_DATA": str(self.folder / "none")}
        self.assertIn("TUTTI_DATA", self.run_it("recipe", code=3, TUTTI_TRAIN=nowhere["TUTTI_LOADER"], **nowhere).stderr)
        # TORCH_VENV is below a file, so the script can neither make the environment nor install a package.
        (self.folder / "file").write_text("")
        self.assertIn("SKIP: torch.txt", self.run_it("steps", code=77, TORCH_VENV=str(self.folder / "file" / "torch")).stdout)


class Input(Run):
    """Tests the tables of the loaders, without the tests of Run."""

    test_programs_run_in_turn_with_best_settings = test_given_settings_are_not_searched_for = test_busy_cores_and_columns_of_other_frameworks = None
    test_program_that_fails_is_an_error = test_wrong_options_are_refused = test_missing_prerequisites = None

    def test_loaders(self):
        out = self.run_it("input", "--repeats", "2", "--seconds", "0.5", **self.input()).stdout
        cores = len(os.sched_getaffinity(0))
        self.assertRegex(out, r"\| CIFAR-10: .*\| +0 \| +42\.0 \(.*\) \| +- \| +- \| +1,000 \(1,000 to 1,000\) \| +- \| +23\.81 \|\n")
        self.assertRegex(out, r"\| ImageNet JPEGs: .*\| +" + str(cores) + r" \| +42\.0 .*\| +42\.0 .*\| +- \| +1,000 .*\| +1,000 .*\| +23\.81 \|\n")
        self.assertRegex(out, r"\| the same, bicubic.*\| +0 \| +- \| +- \| +42\.0 .*\| +1,000 .*\| +- \| +23\.81 \|\n")
        calls = [{k: c[c.index(k) + 1] for k in ("--set", "--workers", "--decoder")} for c, _ in self.calls("torch")]
        self.assertEqual([tuple(c.values()) for c in calls[:8]], [
            ("cifar10", "0", "torchvision"), ("cifar10", str(cores), "torchvision"), ("imagenet", "0", "torchvision"),
            ("imagenet", "0", "pil"), ("imagenet", str(cores), "torchvision"), ("imagenet", str(cores), "pil"),
            ("rsb_a1", "0", "timm"), ("rsb_a1", str(cores), "timm")])
        self.assertEqual(calls[8:], calls[:8])
        self.assertEqual(self.calls("jpeg")[0][0][0], "--benchmark_filter=^jpeg/full/turbojpeg/torchvision/threads1/")
        filters = [c[0][0] for c in self.calls("loader")]
        self.assertEqual(filters[:2], ["--benchmark_filter=^loader/cifar10/b128/threads0/",
                                       f"--benchmark_filter=^loader/cifar10/b128/threads{cores}/"])

    def test_missing_benchmark(self):
        done = self.run_it("input", "--repeats", "1", code=1, **self.input("jpeg/"))
        self.assertIn("loader/cifar10", done.stderr)


class CostPerFlop(Input):
    test_loaders = test_missing_benchmark = None

    def test_table(self):
        # A step of ResNet-18 takes 1 ms per GFLOP at batch 16, 1.1 ms at 64 and 1.25 ms at 256, plus 5 ms for the
        # update.
        step = self.program("cost", "tutti", """a = dict(zip(sys.argv, sys.argv[1:]))
ms = {"16": 1, "64": 1.1, "256": 1.25}.get(a["--batch"], 2) * int(a["--batch"])
print(json.dumps({"system": "tutti", "how": "how", "images_per_second": 10, "images_per_cpu_second": 5, "peak_rss_mib": 1, "flop_per_image": 1e9,
                  "step_ms": ms / 2 + 5, "update_ms": 5, "step_cpu_ms": ms + 10, "update_cpu_ms": 10}))
sys.exit()""")
        done = subprocess.run([sys.executable, PEERS.parent / "cost_per_flop.py", "--precisions", "f32", "--repeats", "2", "--tutti", "--backend x"],
                              text=True, capture_output=True, timeout=120, env={**os.environ, "TUTTI_STEP": str(step)}, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"\| resnet18 +\| +256 \| +f32 \| +10\.0 .* \| +1\.25 \(1\.25 to 1\.25\) \| +1\.25 \| +0\.625 \| +5\.00 \|")
        self.assertIn("resnet18 to resnet18, batch 16 to 256, f32: 25 %; resnet20 to resnet110, batch 128 to 128, f32: 0 %.", done.stdout)
        self.assertEqual(len(self.calls("tutti")), 12)
        self.assertTrue(all(c[0][-2:] == ["--backend", "x"] for c in self.calls("tutti")))

    def test_cost_per_flop_refuses_wrong_options(self):
        for wrong, code in ((["--precisions", "f64"], 2), (["--repeats", "0"], 2), (["--nice", "30"], 2), ([], 3)):
            done = subprocess.run([sys.executable, PEERS.parent / "cost_per_flop.py", *wrong], capture_output=True, timeout=300,
                                  env={**os.environ, "TUTTI_STEP": str(self.folder / "none")}, check=False)
            self.assertEqual(done.returncode, code, wrong)


class Recipe(Input):
    test_loaders = test_missing_benchmark = None

    def train(self, body):
        path = self.folder / "train"
        path.write_text(f"""#!{sys.executable}
import json, os, sys
a = dict(zip(sys.argv, sys.argv[1:]))
os.mkdir(a["--run-dir"])
with open(a["--run-dir"] + "/log.jsonl", "w") as f:
    {body}
""")
        path.chmod(0o755)
        return str(path)

    def test_seeds(self):
        body = """for e in ({"event": "epoch", "train_loss": 1.5}, {"event": "views", "test_ema_top1": float("0." + a["--seed"])}):
        print(json.dumps(e), file=f)"""
        self.program("torch/bin/python", "torch", """a = dict(zip(sys.argv, sys.argv[1:]))
print(json.dumps({"system": "PyTorch", "accuracy_of_views": 0.5 + int(a["--seed"]) / 1000, "loss": 1.25}))
sys.exit()""")
        out = self.run_it("recipe", "--seeds", "49 53", "--epochs", "2", "--width", "0.5", "--num-examples", "1000",
                          TUTTI_TRAIN=self.train(body), **self.input()).stdout
        self.assertRegex(out, r"\| seed 49 +\| +54\.90 \| +49\.00 \| +1\.2500 \| +1\.5000 \|")
        self.assertIn("PyTorch 55.10 % (spread 0.40), tutti 51.00 % (spread 4.00)", out)
        self.assertIn("tutti IS BELOW PyTorch", out)
        self.assertIn("2 epochs, width 0.5, 1000 images, bf16, PyTorch eager", out)

    def test_log_without_accuracy_is_an_error(self):
        self.program("torch/bin/python", "torch", "print(json.dumps({'system': 'P', 'accuracy_of_views': 0.5, 'loss': 1})); sys.exit()")
        done = self.run_it("recipe", "--seeds", "1", code=1, TUTTI_TRAIN=self.train("f.write('{}')"), **self.input())
        self.assertIn("no accuracy", done.stderr)


class Requirements(unittest.TestCase):
    def test_all_requirements_are_pinned(self):
        files = sorted((PEERS / "requirements").glob("*.txt"))
        self.assertEqual([f.stem for f in files], ["mxnet", "onnxruntime", "openvino", "tensorflow", "torch", "torchft"])
        for file in files:
            lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
            self.assertTrue(lines)
            for line in lines:
                self.assertRegex(line, r"^[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*$", f"{file.name}: {line}")
            names = [re.split("==", line)[0].lower() for line in lines]
            self.assertEqual(len(names), len(set(names)))
            self.assertTrue(any(n.startswith(file.stem) for n in names))


if __name__ == "__main__":
    unittest.main(verbosity=2)
