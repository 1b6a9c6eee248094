#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests the Dockerfile: rules, each of which fails on a broken copy, the packages that ./quickstart.sh installs, and,
if a Docker daemon answers, the result of its own checker."""
import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
INSTRUCTIONS = {"ARG", "FROM", "RUN", "COPY", "USER", "WORKDIR", "CMD"}


def instructions(text):
    text = re.sub(r"(?m)^\s*#.*\n", "", text)
    return [tuple(line.split(None, 1)) for line in re.sub(r"\\\n\s*", " ", text).splitlines() if line.strip()]


def faults(text):
    found, stages, defaults = [], [], {}
    lines = instructions(text)
    for word, rest in lines:
        if word not in INSTRUCTIONS:
            found.append(f"{word} is not expected")
        elif word == "ARG":
            name, _, value = rest.partition("=")
            defaults[name] = value
        elif word == "FROM":
            image, _, name = rest.partition(" AS ")
            image = re.sub(r"\$\{(\w+)\}", lambda m: defaults.get(m[1], ""), image)
            if not re.search(r":\d[\w.]*(-slim)?$", image):
                found.append(f"{image}: no tag that says a version")
            stages.append(name)
        elif word == "COPY":
            origin = re.match(r"--from=(\S+)", rest)
            if origin and origin[1] not in stages[:-1]:
                found.append(f"no stage {origin[1]}")
            if not origin and stages[-1] == "":
                found.append("sources in the image")
        elif word == "RUN":
            if subprocess.run(["sh", "-n", "-c", rest], capture_output=True).returncode != 0:
                found.append(f"no shell reads {rest[:60]}")
            if "apt-get install" in rest:
                if not re.search(r"apt-get update\s+&& apt-get install -y --no-install-recommends ", rest):
                    found.append("apt-get update && apt-get install -y --no-install-recommends")
                if "rm -rf /var/lib/apt/lists/*" not in rest:
                    found.append("package lists stay")
            if "cmake -S" in rest and "-DTUTTI_EIGEN_NATIVE=OFF" not in rest:
                found.append("programs for the processor of whoever builds the image")
            for option in re.findall(r"-D(TUTTI_\w+)=", rest):
                if not re.search(rf"option\({option} ", (ROOT / "CMakeLists.txt").read_text()):
                    found.append(f"CMake has no {option}")
    users = [rest for word, rest in lines if word == "USER"]
    if not users or users[-1] == "root":
        found.append("the programs run as root")
    if not any(word == "CMD" and rest.startswith("[") for word, rest in lines):
        found.append("a command that gets no signals")
    return found


class Dockerfile(unittest.TestCase):
    text = (ROOT / "Dockerfile").read_text()

    def test_rules(self):
        self.assertEqual(faults(self.text), [])

    def test_each_rule_can_fail(self):
        for old, new in (("debian:12.12-slim", "debian:latest"), ("--from=build", "--from=other"), (" --no-install-recommends", ""),
                         ("    && rm -rf /var/lib/apt/lists/*\n", "    && true\n"), ("-DTUTTI_EIGEN_NATIVE=OFF", ""),
                         ("-DTUTTI_BUILD_BENCH", "-DTUTTI_BUILD_NOTHING"), ("USER tutti\n", ""), ('CMD ["', "CMD "),
                         ("&& cd /build", "&& (cd /build"), ("WORKDIR", "VOLUME")):
            self.assertIn(old, self.text)
            self.assertNotEqual(faults(self.text.replace(old, new)), [], old)

    def test_packages(self):
        """The image builds with all packages that ./quickstart.sh installs, and contains every strategy of the programs."""
        wanted = re.search(r"^packages=\((.*)\)$", (ROOT / "quickstart.sh").read_text(), re.M)[1].split()
        for package in [*wanted, "libopenmpi-dev", "libgloo-dev", "libzmq3-dev", "libssl-dev"]:
            self.assertRegex(self.text, rf"(?<![\w-]){re.escape(package)}(?![\w-])")

    def test_copied_files_are_not_excluded(self):
        for line in (ROOT / ".dockerignore").read_text().splitlines():
            if line and not line.startswith("#"):
                self.assertNotIn(line.strip("/"), ("include", "backends", "cmake", "src", "docs", "examples", "tools", "datasets", "infra", "bench"))

    def test_checker_of_docker(self):
        docker = shutil.which("docker")
        if not docker or subprocess.run([docker, "info"], capture_output=True, timeout=300).returncode != 0:
            self.skipTest("no Docker daemon answers")
        done = subprocess.run([docker, "build", "--check", ROOT], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=1).result
    sys.exit(0 if result.wasSuccessful() else 1)
