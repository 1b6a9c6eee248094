#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests the Dockerfiles of infra/batch: rules, each of which fails on a broken copy, and their steps, run on a copy of
this machine's files without the installation of packages."""
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build"))
FILES = [ROOT / "infra" / "batch" / f"Dockerfile.{kind}" for kind in ("cpu", "cuda")]
INSTRUCTIONS = {"FROM", "ARG", "SHELL", "RUN", "COPY", "ENV", "EXPOSE", "WORKDIR", "ENTRYPOINT"}


def stages(text):
    """Returns a list of instructions (word, rest) for each stage, without the instructions before the first FROM."""
    found = []
    text = re.sub(r"(?m)^\s*#.*\n", "", text)
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            if word == "FROM":
                found.append([])
            if found:
                found[-1].append((word, rest.strip()))
    return found


def faults(text):
    found, names = [], []
    all_stages = stages(text)
    for stage in all_stages:
        found += [f"{word} is not for these files" for word, _ in stage if word not in INSTRUCTIONS]
        image = re.fullmatch(r"(\S+?)(?: AS (\w+))?", stage[0][1])
        if not image or not re.search(r":[\w.${}-]*\d|:\$\{", image[1]) or image[1].endswith(":latest"):
            found.append(f"{stage[0][1]}: no tag that says a version")
        names.append(image and image[2])
        pipefail = False
        for word, rest in stage:
            if word == "SHELL":
                pipefail = "pipefail" in rest
            if word in ("ENV", "ARG") and re.search(r"(?i)secret|passw|token|_key\b", rest):
                found.append(f"{word} {rest}: a secret stays in an image")
            if word == "COPY":
                *sources, _ = [w for w in rest.split() if not w.startswith("--")]
                origin = re.search(r"--from=(\S+)", rest)
                if origin and origin[1] not in names[:-1]:
                    found.append(f"no stage {origin[1]}")
                found += [f"{s} is not there" for s in sources if not origin and not (ROOT / s).exists()]
            if word != "RUN":
                continue
            if re.search(r"ssh-keygen|id_rsa|id_ed25519|PRIVATE KEY|authorized_keys", rest):
                found.append("a key in the image")
            if re.search(r"(?<!\|)\|(?!\|)", rest) and not pipefail:
                found.append("a pipe whose failure nobody sees")
            if "apt-get install" in rest:
                if not re.search(r"apt-get update && apt-get install -y --no-install-recommends ", rest):
                    found.append("apt-get update && apt-get install -y --no-install-recommends")
                if "rm -rf /var/lib/apt/lists/*" not in rest:
                    found.append("package lists stay")
            if "cmake -S" in rest and "-DTUTTI_EIGEN_NATIVE=OFF" not in rest:
                found.append("programs for the processor of whoever builds the image")
            # Debian makes host keys when openssh-server is installed.
            if "openssh-server" in rest and "/etc/ssh/ssh_host_*" not in rest:
                found.append("host keys that all containers share")
    last = all_stages[-1]
    entry = [rest for word, rest in last if word == "ENTRYPOINT"]
    if len(entry) != 1 or not entry[0].startswith("["):
        found.append("an entry point that gets Batch's signals")
    if ("EXPOSE", "22") not in last:
        found.append("no port for ssh")
    if any(word == "COPY" and rest.split()[0] == "." for word, rest in last):
        found.append("sources in the image")
    if any(re.search(r"(?<!\S)(g\+\+|cmake|libopenmpi-dev)(?!\S)", rest) for word, rest in last if word == "RUN"):
        found.append("compilers in the image")
    if not any("--from=" in rest for word, rest in last if word == "COPY"):
        found.append("no programs")
    return found


BROKEN = [("debian:12.12-slim AS build", "debian AS build"), ("debian:12.12-slim AS build", "debian:latest AS build"),
          (" --no-install-recommends", ""), (" && rm -rf /var/lib/apt/lists/*", ""), (" /etc/ssh/ssh_host_*", ""),
          ('ENTRYPOINT ["/usr/local/bin/entry-point.sh"]', "ENTRYPOINT /usr/local/bin/entry-point.sh"),
          ("RUN chmod", "RUN ssh-keygen -N '' -f /root/.ssh/id_rsa && chmod"), ("EXPOSE 22\n", ""),
          ("COPY --from=build /opt/tutti", "COPY --from=built /opt/tutti"), ("infra/batch/mpi-run.sh infra", "infra/batch/mpirun.sh infra"),
          ("WORKDIR", "ADD https://x/y /y\nWORKDIR"), ("ENV PATH", "ENV SSH_PRIVATE_KEY=x\nENV PATH"),
          ("RUN chmod", "RUN cat x | sh && chmod"), ("COPY --from=build /opt/tutti /opt/tutti", "COPY . /opt/tutti"),
          ("openmpi-bin openssh-server", "g++ openmpi-bin openssh-server"), (" -DTUTTI_EIGEN_NATIVE=OFF", "")]


class Rules(unittest.TestCase):
    def test_files(self):
        for path in FILES:
            self.assertEqual(faults(path.read_text()), [], path)

    def test_broken_copies(self):
        text = FILES[0].read_text()
        for old, new in BROKEN:
            self.assertIn(old, text)
            with self.subTest(new):
                self.assertNotEqual(faults(text.replace(old, new, 1) if old != " && rm -rf /var/lib/apt/lists/*"
                                           else text.replace(old, new)), [])

    def test_shell(self):
        if shutil.which("shellcheck") is None:
            self.skipTest("no shellcheck (Debian: apt-get install shellcheck)")
        for path in FILES:
            for stage in stages(path.read_text()):
                shell = "bash" if any(word == "SHELL" for word, _ in stage) else "sh"
                for word, rest in stage:
                    if word == "RUN":
                        done = subprocess.run(["shellcheck", "-s", shell, "-e", "SC2154", "-"], input=rest, text=True, capture_output=True)
                        self.assertEqual(done.stdout, "")
        scripts = [str(p) for p in (ROOT / "infra" / "batch").glob("*.sh")]
        done = subprocess.run(["shellcheck", *scripts], text=True, capture_output=True, timeout=900)
        self.assertEqual(done.stdout, "")


class Steps(unittest.TestCase):
    """Runs each Dockerfile on an overlay over this machine's files, a Debian 12 like the image of Dockerfile.cpu."""

    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            raise unittest.SkipTest("a root of another one's needs root")
        if not (BUILD / "tools" / "tutti-launch").exists():
            raise unittest.SkipTest("the programs have not been built")
        cls.folder = Path(tempfile.mkdtemp(prefix="tutti-image-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", cls.folder], capture_output=True).returncode != 0:
            raise unittest.SkipTest("no mount is allowed here")
        cls.addClassCleanup(subprocess.run, ["umount", "-l", cls.folder])
        for name in ("upper", "work", "root"):
            (cls.folder / name).mkdir()
        cls.root = cls.folder / "root"
        done = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={cls.folder}/upper,"
                               f"workdir={cls.folder}/work", cls.root], capture_output=True, text=True)
        if done.returncode != 0:
            raise unittest.SkipTest(f"no overlay is allowed here: {done.stderr.strip()}")
        cls.addClassCleanup(subprocess.run, ["umount", "-l", cls.root])
        for kind in ("dev", "proc"):
            subprocess.run(["mount", "--bind", f"/{kind}", cls.root / kind], check=True)
            cls.addClassCleanup(subprocess.run, ["umount", "-l", cls.root / kind])
        # The state after the installation of the package openssh-server.
        (cls.root / "etc" / "ssh").mkdir(exist_ok=True)
        (cls.root / "etc" / "ssh" / "ssh_host_made_key").write_text("PRIVATE KEY")
        (cls.root / "usr" / "local" / "bin" / "apt-get").write_text("#!/bin/sh\necho apt-get \"$@\"\n")
        (cls.root / "usr" / "local" / "bin" / "apt-get").chmod(0o755)
        cls.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        cls.build(stages(FILES[0].read_text()))

    @classmethod
    def inside(cls, argv, **more):
        return subprocess.run(["chroot", cls.root, *argv], env={**cls.environment, **more}, text=True, capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=900)

    @classmethod
    def build(cls, all_stages):
        """Copies the programs of the build stage from this machine's build, and runs the other steps unchanged."""
        for word, rest in all_stages[0]:
            if word == "RUN" and "cmake" in rest:
                for part in rest.split(" && "):
                    if part.startswith("cmake --install"):
                        words = shlex.split(part.replace("/build", str(BUILD), 1).replace("/opt/tutti", f"{cls.folder}/tutti"))
                        done = subprocess.run(words, capture_output=True, text=True, timeout=900)
                        assert done.returncode == 0, done.stdout + done.stderr
        cls.packages, cls.entry = [], None
        for word, rest in all_stages[1]:
            if word == "RUN":
                done = cls.inside(["/bin/sh", "-c", rest])
                assert done.returncode == 0, f"{rest}\n{done.stdout}{done.stderr}"
                for line in done.stdout.splitlines():
                    if line.startswith("apt-get install"):
                        cls.packages += [w for w in line.split()[2:] if not w.startswith("-")]
            elif word == "COPY":
                *sources, target = [w for w in rest.split() if not w.startswith("--")]
                for source in sources:
                    origin = cls.folder / "tutti" if "--from=" in rest else ROOT / source
                    where = Path(f"{cls.root}{target}")
                    where.mkdir(parents=True, exist_ok=True)
                    subprocess.run(["cp", "-r", f"{origin}/." if origin.is_dir() else origin, where], check=True)
            elif word == "ENV":
                cls.environment.update([rest.split("=", 1)])
            elif word == "WORKDIR":
                Path(f"{cls.root}{rest}").mkdir(exist_ok=True)
            elif word == "ENTRYPOINT":
                cls.entry = json.loads(rest)

    def test_no_key_is_in_the_image(self):
        self.assertEqual(list((self.root / "etc" / "ssh").glob("ssh_host_*")), [])
        done = subprocess.run(["grep", "-rl", "PRIVATE KEY-----", self.root / "opt" / "tutti", self.root / "opt" / "batch"],
                              capture_output=True, text=True)
        self.assertEqual(done.stdout, "")

    def test_packages_exist(self):
        self.assertIn("openmpi-bin", self.packages)
        for name in self.packages:
            known = subprocess.run(["apt-cache", "show", name], capture_output=True).returncode == 0
            installed = subprocess.run(["dpkg", "-s", name], capture_output=True).returncode == 0
            if not known and not installed and not list(Path("/var/lib/apt/lists").glob("*_Packages*")):
                self.skipTest("no package lists here (apt-get update)")
            self.assertTrue(known or installed, name)

    def test_programs(self):
        for name in ("train_imagenet", "train_cifar10", "tutti-launch"):
            done = self.inside(["sh", "-c", f"command -v {name} && {name} --version"])
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"/opt/tutti/bin/{name}", done.stdout)
        done = self.inside(["sh", "-c", "ldd /opt/tutti/bin/train_imagenet"])
        self.assertNotIn("not found", done.stdout)
        # This library is in no package of the list.
        self.assertRegex(done.stdout, r"libdnnl\S* => /opt/tutti/bin/\.\./lib/tutti/")

    def test_entry_point_without_a_key(self):
        self.assertEqual(self.entry, ["/usr/local/bin/entry-point.sh"])
        done = self.inside(self.entry)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("[key] expected the name of the job's ssh key, got no name.", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
