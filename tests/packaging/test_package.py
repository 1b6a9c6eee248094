#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# takes long
"""Tests infra/package/make_package.sh: each file of its archive needs only libraries of the archive. The programs, with
mpirun among them, run in a root of an older Debian that has no files of this machine, in /opt/tutti and elsewhere, and
between hosts over ssh. TUTTI_ROOTS=jammy,noble,trixie selects other systems, see SYSTEMS."""
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hosts"))
import netns_cluster  # noqa: E402
import wheel_case  # noqa: E402

ROOT = Path(os.environ["TUTTI_SOURCE_DIR"])
BUILD = Path(os.environ["TUTTI_BUILD_DIR"])
MAKE = ROOT / "infra" / "package" / "make_package.sh"
# For each system: the version of its C library, and its download address. Debian 11 has an older C library than any
# supported host.
DEBIAN, UBUNTU = "http://deb.debian.org/debian", "http://archive.ubuntu.com/ubuntu"
SYSTEMS = {"bullseye": ("2.31", DEBIAN), "jammy": ("2.35", UBUNTU), "noble": ("2.39", UBUNTU), "trixie": ("2.41", DEBIAN)}
TRAIN = ["--dataset", "synthetic", "--num-examples", "96", "--image-shape", "3,16,16", "--depth", "8", "--batch-size", "32",
         "--max-steps", "1"]
PROGRAMS = ["train_cifar10", "train_imagenet", "tutti-launch", "tutti-data", "tutti-check-audit", "tutti-report",
            "generate-trainer"]


def run(*argv, timeout=300, **options):
    return subprocess.run([str(a) for a in argv], text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout,
                          **options)


def version(text):
    return tuple(int(n) for n in text.split("."))


def elf_files(top):
    for path in sorted(top.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def reads(path):
    """Returns the needs of an ELF file: (libraries, {name of a library's versions: [version]}, search paths)."""
    text = run("readelf", "-dVW", path).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", text)
    paths = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", text)
    asked = {}
    part = text.partition("Version needs section")[2]
    for name, number in re.findall(r"Name: ([A-Z]+(?:XX|XXABI)?)_([0-9.]+)\b", part):
        asked.setdefault(name, []).append(version(number))
    return needed, asked, paths


def root_of(system):
    """Returns a folder with the files of a system, or `None` and the reason."""
    root, mirror = BUILD / "roots" / system, SYSTEMS[system][1]
    if os.geteuid() != 0 or run("unshare", "--mount", "--pid", "--fork", "--net", "true").returncode != 0:
        return None, "namespaces, which take root"
    if (root / "complete").exists():
        return root, ""
    debootstrap = shutil.which("debootstrap", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if not debootstrap:
        return None, "no debootstrap (Debian: apt-get install debootstrap)"
    shutil.rmtree(root, ignore_errors=True)
    root.parent.mkdir(exist_ok=True)
    options, rules = ["--foreign", "--variant=minbase"], Path("/usr/share/debootstrap/scripts") / system
    if mirror == UBUNTU:
        options.append("--keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg")  # of the package ubuntu-keyring
        rules = rules if rules.exists() else rules.with_name("gutsy")
    try:  # packages are unpacked but not configured, so that no program of them runs
        done = run(debootstrap, *options, system, root, mirror, rules, timeout=240)
        why = "" if done.returncode == 0 else (done.stdout + done.stderr).strip().splitlines()[-1]
    except subprocess.TimeoutExpired:
        why = "it took more than 240 s"
    if why:
        shutil.rmtree(root, ignore_errors=True)
        return None, f"debootstrap: {why}"
    shutil.rmtree(root / "var" / "cache" / "apt", ignore_errors=True)
    for name in ("proc", "sys", "dev"):  # if debootstrap may not mount, it makes links to the folders of this machine
        if (root / name).is_symlink():
            (root / name).unlink()
        (root / name).mkdir(exist_ok=True)
    (root / "complete").touch()
    return root, ""


@functools.lru_cache(maxsize=None)
def archive_of_build():
    """Makes the archive, once for all tests."""
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    archive = Path(folder.name, "tutti.tar.gz")
    done = run(MAKE, "--build", BUILD, "--native", "--out", archive)
    if done.returncode != 0:
        raise AssertionError(f"make_package.sh ends with {done.returncode}: {done.stderr}")
    return archive


class Wheel(wheel_case.WheelCase):
    archive = staticmethod(archive_of_build)
    root_of = staticmethod(root_of)


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.work)
        cls.archive = archive_of_build()
        cls.top = cls.unpack(cls.work / "here")

    @classmethod
    def unpack(cls, folder):
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-xzf", cls.archive, "-C", folder], check=True)
        return folder / "tutti"

    def refused(self, *arguments, tells, code=2, program=MAKE):
        done = run(program, *arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertIn(tells, done.stderr)

    def test_bad_arguments(self):
        self.refused("--out", tells="[--out] expected a value after it")
        self.refused("--out", self.work, tells="[--out] expected a file")
        self.refused("--what", tells="[arguments] expected --out FILE")
        self.refused("--build", self.work, tells="[--build] expected a folder that CMake has configured")
        native = self.work / "native"
        native.mkdir()
        (native / "CMakeCache.txt").write_text("TUTTI_EIGEN_NATIVE:BOOL=ON\n")
        self.refused("--build", native, tells="expected programs for any x86_64 processor")

    def test_the_scripts_lint(self):
        if not shutil.which("shellcheck"):
            self.skipTest("no shellcheck (Debian: apt-get install shellcheck)")
        done = run("shellcheck", "-x", "-P", "SCRIPTDIR", *sorted(MAKE.parent.glob("*.sh")))
        self.assertEqual(done.stdout, "")

    def test_each_file_finds_what_it_needs_in_the_archive(self):
        """Checks which libraries and symbol versions the programs, libraries and plugins need."""
        files = list(elf_files(self.top))
        self.assertGreater(len(files), 30)
        has = {p.name for folder in ("lib/tutti", "lib/tutti/c") for p in (self.top / folder).iterdir()}
        c_library = version(re.search(r"c_library ([0-9.]+)", (self.top / "share/tutti/package/about").read_text())[1])
        libstdcxx = (self.top / "lib/tutti/libstdc++.so.6").read_bytes()
        newest = {name: max(version(v.decode()) for v in re.findall(name.encode() + rb"_([0-9]+(?:\.[0-9]+)+)", libstdcxx))
                  for name in ("GLIBCXX", "CXXABI")}
        newest["GLIBC"] = c_library
        for path in files:
            name = str(path.relative_to(self.top))
            needed, asked, paths = reads(path)
            self.assertEqual([n for n in needed if n not in has], [], f"{name} needs these, which the archive lacks")
            for library, versions in asked.items():
                if library in newest:
                    self.assertLessEqual(max(versions), newest[library], f"{name} asks for a later {library}")
            for place in ":".join(paths).split(":"):
                self.assertRegex(place, r"^$|^\$ORIGIN/(\.\./)+lib/tutti(/c)?$|^\$ORIGIN/(\.\./)+tutti(/c)?$",
                                 f"{name} looks elsewhere")
        for part in ("libcuda", "libnvidia", "libcudart", "libcudnn", "libnccl"):
            self.assertEqual([n for n in has if n.startswith(part)], [], "the host's driver libraries stay the host's")

    def test_contents(self):
        for program in [*PROGRAMS, "prepare-data", "runclust", "copyclust", "mpirun", "tutti-plan"]:
            self.assertTrue(os.access(self.top / "bin" / program, os.X_OK), program)
        done = run(self.top / "bin" / "tutti-plan", "668:256", "--type", "p3.16xlarge", "--nodes", "4")
        self.assertIn("| 4 | 8192 |", done.stdout, done.stderr)
        done = run(self.top / "bin" / "tutti-plan", "668:256", "--type", "p3.16xlarge", "--nodes", "4", "--spot-price", "7", "--spot-trace", "zone:us-west-2c-4")
        self.assertIn("| tutti |", done.stdout, done.stderr)
        for file in ("scripts/train.sh", "bootstrap/setup_host.py", "batch/mpi-run.sh", "cloudformation/cluster.yaml"):
            self.assertTrue((self.top / "share/tutti" / file).is_file(), file)
        listed = run("tar", "-tvzf", self.archive).stdout.splitlines()
        self.assertEqual({line.split()[5].split("/")[0] for line in listed}, {"tutti"})
        self.assertEqual({line.split()[1] for line in listed}, {"0/0"})
        self.assertEqual([line for line in listed if line[0] != "l" and "w" in (line[5], line[8])], [])

    def in_root(self, root, *argv, environment=None):
        """Runs argv in the root, with /proc, /sys and a separate /dev, and without a network."""
        script = ('cd "$1" && mount -t proc proc proc && mount --rbind /sys sys && mount -t tmpfs tmpfs dev && mkdir dev/shm &&'
                  ' mknod -m 666 dev/null c 1 3 && mknod -m 666 dev/urandom c 1 9 && mknod -m 666 dev/zero c 1 5 &&'
                  ' mkdir dev/pts && mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts && ln -s pts/ptmx dev/ptmx &&'
                  ' ip link set lo up && shift && exec chroot . "$@"')
        return run("unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "sh", "-c", script, "_", root, *argv,
                   env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **(environment or {})})

    def test_in_other_systems(self):
        for system in os.environ.get("TUTTI_ROOTS", "bullseye").split(","):
            with self.subTest(system):
                root, why = root_of(system)
                if root is None:
                    self.skipTest(f"no root of {system}: {why}")
                self.in_system(root, SYSTEMS[system][0])

    def in_system(self, root, c_library):
        place = self.work / f"root of {root.name}"
        subprocess.run(["cp", "-a", "--reflink=auto", str(root), str(place)], check=True)
        self.unpack(place / "opt")

        done = self.in_root(place, "/bin/sh", "-c", "/lib64/ld-linux-x86-64.so.2 --version || ldd --version")
        self.assertIn(c_library, done.stdout + done.stderr, "another C library than that system's")

        def succeeds(*argv, tells="", **environment):
            done = self.in_root(place, *argv, environment=environment)
            self.assertEqual(done.returncode, 0, f"{argv}: {done.stdout}{done.stderr}")
            self.assertIn(tells, done.stdout + done.stderr)

        for program in PROGRAMS:
            succeeds(f"/opt/tutti/bin/{program}", "--help")
        succeeds("/opt/tutti/bin/prepare-data", "--help", tells="usage: prepare-data")
        # The programs select their instructions when they run.
        train = ["/opt/tutti/bin/train_cifar10", *TRAIN]
        succeeds(*train, "--run-dir", "/tmp/a", TUTTI_ISA="baseline", tells="own kernels baseline")
        succeeds("/opt/tutti/bin/tutti-launch", "-n", "2", *train, "--strategy", "gloo", "--run-dir", "/tmp/b", tells="2 ranks")
        succeeds("/opt/tutti/bin/tutti-launch", "-n", "2", "-s", "1", *train, "--strategy", "ps", "--run-dir", "/tmp/c",
                 tells="2 ranks")
        # mpirun needs ssh even if all ranks are on one host, unless its option `plm` is `isolated`.
        isolated = ["--mca", "plm", "isolated", "--oversubscribe", "--allow-run-as-root", "-np", "2"]
        succeeds("/opt/tutti/bin/mpirun", *isolated, *train, "--strategy", "mpi", "--run-dir", "/tmp/d",
                 tells="strategy mpi, 2 ranks")

        # The archive in another folder.
        (place / "srv").mkdir(exist_ok=True)
        (place / "opt/tutti").rename(place / "srv/its place")
        moved = "/srv/its place"
        done = self.in_root(place, f"{moved}/bin/tutti-launch", "--help")
        self.assertEqual(done.returncode, 127, done.stderr)
        succeeds(f"{moved}/setup.sh", tells=f"C library {version_here()} of the archive")
        for program in PROGRAMS:
            succeeds(f"{moved}/bin/{program}", "--help")
        succeeds(f"{moved}/bin/tutti-launch", "-n", "2", f"{moved}/bin/train_cifar10", *TRAIN, "--run-dir", "/tmp/e",
                 tells="2 ranks")
        if version(c_library) < version(version_here()):
            done = self.in_root(place, f"{moved}/setup.sh", "--c-library", "host")
            self.assertEqual(done.returncode, 2)
            self.assertIn("[--c-library] expected a C library of the host", done.stderr)
            succeeds(f"{moved}/setup.sh", "--c-library", "newer", tells="of the archive")
            return
        succeeds(f"{moved}/setup.sh", "--c-library", "newer", tells=f"C library {c_library} of the host")
        succeeds(f"{moved}/bin/tutti-launch", "-n", "2", f"{moved}/bin/train_cifar10", *TRAIN, "--run-dir", "/tmp/f",
                 tells="2 ranks")

    def test_c_library_of_the_host(self):
        top = self.unpack(self.work / "host")
        self.refused("--c-library", "mine", program=top / "setup.sh", tells="[--c-library] expected own, host or newer")
        self.refused("--what", program=top / "setup.sh", tells="[arguments]")
        for want, loader in (("host", "/lib64/ld-linux-x86-64.so.2"), ("own", f"{top}/lib/tutti/c/ld-linux-x86-64.so.2")):
            done = run(top / "setup.sh", "--c-library", want)
            self.assertEqual(done.returncode, 0, done.stderr)
            for program in ("train_cifar10", "tutti-launch"):
                done = run(top / "bin" / program, "--help")
                self.assertEqual(done.returncode, 0, f"{program} with {want}: {done.stderr}")
                text = run("readelf", "-lW", top / "bin" / program).stdout
                self.assertIn(f"interpreter: {loader}]", text)

    def test_between_hosts(self):
        """Starts ranks over ssh on hosts with neither the programs nor an mpirun in their PATH."""
        top = self.unpack(self.work / "two")  # Open MPI cannot start orted from a path with spaces
        done = run(top / "setup.sh")
        self.assertEqual(done.returncode, 0, done.stderr)
        path = self.work / "path"
        path.mkdir()
        for program in ("sh", "ssh", "readlink", "dirname", "env"):
            (path / program).symlink_to(shutil.which(program))
        environment = {"PATH": str(path), "HOME": os.environ.get("HOME", "/root"), "TUTTI_STATE_DIR": str(self.work / "state")}
        try:
            with netns_cluster.NetnsCluster(2) as cluster:
                net = f"{cluster.net}.0/24"
                arguments = ["--mca", "oob_tcp_if_include", net, "--mca", "btl_tcp_if_include", net]
                for strategy, more in (("gloo", []), ("mpi", [w for a in arguments for w in ("--mpi-arg", a)])):
                    done = run(top / "bin/tutti-launch", "--ssh-config", cluster.ssh_config, "--connect-timeout", "40", "-H",
                               cluster.hosts_file(1), *more, top / "bin/train_cifar10", *TRAIN, "--strategy", strategy, "--run-dir",
                               self.work / strategy, env=environment)
                    self.assertEqual(done.returncode, 0, f"{strategy}: {done.stdout}{done.stderr}")
                    self.assertIn("2 workers on 2 hosts", done.stderr)
                    self.assertIn(f"strategy {strategy}, 2 ranks", done.stdout + done.stderr)
        except netns_cluster.Unavailable as why:
            self.skipTest(str(why))


def version_here():
    return os.confstr("CS_GNU_LIBC_VERSION").split()[-1]


if __name__ == "__main__":
    for needed in ("patchelf", "readelf", "mpirun", "unshare"):
        if not shutil.which(needed):
            print(f"SKIP: no {needed} (Debian: apt-get install patchelf binutils openmpi-bin util-linux)")
            sys.exit(77)
    program = unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]], exit=False)
    for case, why in program.result.skipped:
        print(f"SKIP: {case.id()}: {why}")
    sys.exit(1 if not program.result.wasSuccessful() else 77 if program.result.skipped else 0)
