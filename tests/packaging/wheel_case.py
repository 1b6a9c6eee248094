# SPDX-License-Identifier: MIT
"""Tests of infra/package/wheel.py. test_package.py runs them with the archive that it makes."""
import base64
import csv
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(os.environ["TUTTI_SOURCE_DIR"])
BUILD = Path(os.environ["TUTTI_BUILD_DIR"])
WHEEL = ROOT / "infra" / "package" / "wheel.py"
PAGE = ROOT / "docs" / "how-to" / "install.md"
TRAIN = ["--dataset", "synthetic", "--num-examples", "96", "--image-shape", "3,16,16", "--depth", "8", "--batch-size", "32", "--max-steps", "1"]


def run(*argv, timeout=300, **options):
    return subprocess.run([str(a) for a in argv], text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, **options)


def blocks_of_page():
    """Returns the shell blocks of the page that name this file."""
    return re.findall(r"<!-- not run: tests/packaging/wheel_case\.py runs it -->\n```sh\n(.*?)```", PAGE.read_text(), re.S)


class WheelCase(unittest.TestCase):
    archive = root_of = None

    @classmethod
    def setUpClass(cls):
        if cls is WheelCase:
            raise unittest.SkipTest("test_package.py runs these tests")
        cls.work = Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.work)
        done = run(sys.executable, WHEEL, "--build", BUILD, "--native", "--archive", cls.archive(), "--out", cls.work)
        if done.returncode != 0:
            raise AssertionError(f"wheel.py ends with {done.returncode}: {done.stderr}")
        cls.wheel = next(cls.work.glob("*.whl"))
        cls.venv = cls.work / "try"
        commands = blocks_of_page()
        if not commands:
            raise AssertionError(f"{PAGE} has no commands that install the wheel")
        # The commands of the page make a new environment, install the wheel and train.
        done = run("bash", "-euo", "pipefail", "-c", commands[0], cwd=cls.work,
                   env=dict(os.environ, PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_CONFIG_FILE=os.devnull))
        if "ensurepip" in done.stdout + done.stderr and done.returncode:
            raise unittest.SkipTest("no venv (Debian: apt-get install python3-venv)")
        if done.returncode != 0:
            raise AssertionError(f"the commands of {PAGE}: {done.stdout}{done.stderr}")
        cls.told = done.stdout + done.stderr

    def program(self, name, *arguments, path="/usr/bin:/bin", **options):
        return run(self.venv / "bin" / name, *arguments, env={"PATH": path, "HOME": str(self.work), "TUTTI_STATE_DIR": str(self.work / "state")},
                   cwd=self.work, **options)

    def test_size_name_and_record(self):
        self.assertRegex(self.wheel.name, r"^tutti-[0-9.]+-py3-none-manylinux_2_\d+_x86_64\.whl$")
        with zipfile.ZipFile(self.wheel) as wheel:
            names = wheel.namelist()
            self.assertLessEqual(self.wheel.stat().st_size, 28e6 if any("/openmpi/" in n for n in names) else 25e6)
            self.assertEqual(len(names), len(set(names)))
            info = next(n for n in names if n.endswith(".dist-info/RECORD"))
            record = list(csv.reader(wheel.read(info).decode().splitlines()))
            self.assertEqual({row[0] for row in record}, set(names))
            for name, digest, size in record:
                if name != info:
                    data = wheel.read(name)
                    self.assertEqual(digest, "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode(), name)
                    self.assertEqual(int(size), len(data), name)
            self.assertEqual({i.date_time for i in wheel.infolist()}, {wheel.infolist()[0].date_time})
            self.assertEqual({oct(i.external_attr >> 16) for i in wheel.infolist()}, {"0o100644", "0o100755"})
            self.assertIn("Tag: " + "-".join(self.wheel.stem.split("-")[2:]), wheel.read(info.replace("RECORD", "WHEEL")).decode())
            about = wheel.read(info.replace("RECORD", "METADATA")).decode()
            self.assertRegex(about, "Open MPI comes with it|`--strategy mpi` is left out")
            bill = json.loads(wheel.read(info.replace("RECORD", "sboms/tutti.spdx.json")))
            libraries = {n.partition("data/data/lib/tutti/")[2] for n in names if re.search(r"\.so[.0-9]*$", n)}
            self.assertEqual({p["packageFileName"] for p in bill["packages"] if ".so" in p.get("packageFileName", "")}, libraries)
            for package in bill["packages"]:  # the licence of each library is in the wheel
                if package.get("externalRefs"):
                    self.assertIn(info.replace("RECORD", f"licenses/bundled/{package['name']}.txt"), names)

    def test_tag_is_what_the_files_need(self):
        """The tag's C library has all symbols that programs and libraries need, and each library is there or part of that C library."""
        minor = int(re.search(r"manylinux_2_(\d+)", self.wheel.name)[1])
        top = self.venv / "lib" / "tutti"
        has, newest = {p.name for p in (top / "lib" / "tutti").iterdir()}, 0
        c_library = re.compile(r"(libc|libm|libmvec|libdl|librt|libpthread|libresolv|libutil|libanl|ld-linux-x86-64)\.so\.\d+")
        files = [p for p in top.rglob("*") if p.is_file() and p.read_bytes()[:4] == b"\x7fELF"]
        self.assertGreater(len(files), 15)
        for path in files:
            text = run("readelf", "-dlVW", path).stdout
            for name in re.findall(r"\(NEEDED\).*\[(.*)\]", text):
                self.assertTrue(name in has or c_library.fullmatch(name), f"{path} needs {name}")
            newest = max([newest, *(int(v) for v in re.findall(r"Name: GLIBC_2\.(\d+)", text))])
            if "INTERP" in text:
                self.assertIn("interpreter: /lib64/ld-linux-x86-64.so.2]", text, path)
        self.assertEqual(newest, minor)

    def test_installed_programs_run(self):
        self.assertIn("own kernels", self.told)
        for name in ("train_cifar10", "train_imagenet", "tutti-train", "tutti-launch", "tutti-predict", "tutti-report", "tutti-export", "tutti-data", "tutti-plan"):
            done = self.program(name, "--help")
            self.assertEqual(done.returncode, 0, f"{name}: {done.stderr}")
        done = self.program("tutti-plan", "668:256", "--type", "p3.16xlarge", "--nodes", "4", path=f"{self.venv}/bin:/usr/bin:/bin")
        self.assertIn("| 4 | 8192 |", done.stdout, done.stderr)
        done = self.program("tutti-launch", "-n", "2", self.venv / "bin" / "train_cifar10", *TRAIN, "--strategy", "gloo", "--run-dir", "two")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("strategy gloo, 2 ranks", done.stdout + done.stderr)
        done = self.program("tutti-report", "two", "--out", "page.html")
        self.assertEqual(done.returncode, 0, done.stderr)
        # Errors and exit codes arrive.
        self.assertEqual(self.program("train_cifar10", "--what").returncode, 2)
        merged = self.venv / "lib" / "tutti" / "bin" / "tutti-programs"
        for arguments, got in (((), "no argument"), (("train_cifar11",), "train_cifar11")):
            done = run(merged, *arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(f"tutti-programs: [arguments] expected a program, got {got}.", done.stderr)

    def test_uninstall_leaves_no_file(self):
        venv = self.work / "gone"
        shutil.copytree(self.venv, venv, symlinks=True)
        done = run(venv / "bin" / "python", "-m", "pip", "uninstall", "-qy", "tutti", env={"PATH": "/usr/bin:/bin"})
        self.assertEqual(done.returncode, 0, done.stderr)
        left = [p for p in venv.rglob("*") if p.is_file() and ("tutti" in str(p.relative_to(venv)) or p.name.startswith("train_"))]
        self.assertEqual([p for p in left if p.parent.name != "__pycache__"], [])  # Python writes these when a program runs

    def test_machine_that_is_too_old(self):
        stands_in = self.work / "stands in"
        for tool, answer, tells in (("uname", "aarch64", "[processor] expected x86_64, got aarch64"),
                                    ("getconf", "glibc 2.17", "or later, got 2.17. hint: take the archive of make_package.sh"),
                                    ("getconf", "glibc 1.99", "or later, got 1.99"),
                                    ("getconf", "", "or later, got another one"),
                                    ("sed", "sse2", "[processor] expected one with ")):
            if tool == "sed" and "for feature in" not in (self.venv / "bin" / "train_cifar10").read_text():
                continue
            shutil.rmtree(stands_in, ignore_errors=True)
            stands_in.mkdir()
            (stands_in / tool).write_text(f"#!/bin/sh\necho '{answer}'\n")
            (stands_in / tool).chmod(0o755)
            done = self.program("train_cifar10", "--help", path=f"{stands_in}:/usr/bin:/bin")
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertIn(tells, done.stderr)
            self.assertRegex(done.stderr, r"^train_cifar10: \[")
        root, why = self.root_of("bullseye")
        if root is None:
            self.skipTest(f"no root of bullseye: {why}")
        (root / "mnt").mkdir(exist_ok=True)
        done = run("unshare", "--mount", "sh", "-c", 'mount --bind "$1" "$2/mnt" && exec chroot "$2" /mnt/bin/train_cifar10 --help', "_", self.venv, root,
                   env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("got 2.31", done.stderr)

    def test_equal_input_gives_equal_bytes(self):
        spec = importlib.util.spec_from_file_location("wheel_of_programs", WHEEL)
        module = importlib.util.module_from_spec(spec)
        sys.dont_write_bytecode = True
        spec.loader.exec_module(module)
        files = {f"a-1.dist-info/{n}": (n.encode(), False) for n in ("WHEEL", "METADATA")} | {f'a-1.data/x,"{n}': (b"x" * n, n % 2 == 0) for n in range(9)}
        one, two = self.work / "one.zip", self.work / "two.zip"
        module.write_wheel(one, files, 1700000001)
        module.write_wheel(two, dict(reversed(files.items())), 1700000001)
        self.assertEqual(one.read_bytes(), two.read_bytes())
        with zipfile.ZipFile(one) as wheel:
            self.assertEqual(wheel.namelist()[-1], "a-1.dist-info/RECORD")
            self.assertIn('"a-1.data/x,""3",sha256=', wheel.read("a-1.dist-info/RECORD").decode())

    def test_bad_arguments(self):
        for arguments, tells in ((("--out", self.work / "nothing"), "[--out] expected a folder"),
                                 (("--build", self.work), "[--build] expected a folder that CMake has configured"),
                                 (("--archive", self.wheel), "[--archive] expected an archive of make_package.sh, and --build")):
            done = run(sys.executable, WHEEL, *arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(tells, done.stderr)
