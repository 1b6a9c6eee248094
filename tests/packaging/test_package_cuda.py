#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# takes long
"""Tests `infra/package/make_package.sh --cuda`: the archive contains CUDA's libraries, unchanged, in the folder that
programs search first, with the libraries that they need. A message says which GPUs the archive supports. A build with
another CUDA is refused. Uses small stand-ins for PyPI's wheels."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(os.environ["TUTTI_SOURCE_DIR"]) / "infra" / "bootstrap"))
import host_files  # noqa: E402
import host_setup  # noqa: E402

ROOT = Path(os.environ["TUTTI_SOURCE_DIR"])
BUILD = Path(os.environ["TUTTI_BUILD_DIR"])
CXX = os.environ.get("TUTTI_CXX", "c++")
PACKAGE = ROOT / "infra" / "package"
CACHE = (BUILD / "CMakeCache.txt").read_text()
CUDA = (re.search(r"^TUTTI_BUILT_CUDA:INTERNAL=(\d+)", CACHE, re.M) or [None, None])[1]

# Opens the libraries as the backend does, and prints the file of each library.
PROBE = r"""
#include <link.h>
#include <cstdio>
#include <string>
#include <tutti/backends/cuda/library.hpp>
int main(int, char** words) {
  for (char** name = words + 1; *name != nullptr; ++name) {
    const tutti::cuda::Library library(*name, "it");
    if (!library.found()) return std::printf("%s: not found\n", *name), 1;
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(library.function<int()>("stand_in")), &info);
    std::printf("%s\n", info.dli_fname);
  }
}
"""


def run(*argv, timeout=600, **options):
    return subprocess.run([str(a) for a in argv], text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout,
                          **options)


def pins(major):
    lines = (PACKAGE / f"cuda-{major}.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def libraries(major):
    """Returns {part of a wheel's name: files of the archive that are from this wheel}."""
    return {"nvrtc": [f"libnvrtc.so.{major}", f"libnvrtc-builtins.so.{major}.0"], "cublas": [f"libcublasLt.so.{major}"],
            "cudnn": ["libcudnn.so.9", "libcudnn_graph.so.9"], "nccl": ["libnccl.so.2"]}


def compiled(folder, name, *options):
    """Compiles a shared library with this name."""
    source = folder / "stand_in.cpp"
    source.write_text('extern "C" int stand_in() { return 1; }\n')
    done = run(CXX, "-shared", "-fPIC", "-g", f"-Wl,-soname,{name}", "-o", folder / name, source, *options)
    assert done.returncode == 0, done.stderr
    return folder / name


def make_wheels(folder, major):
    """Makes wheels with the names and versions in the list. Each wheel has its libraries, one library that the archive
    omits, and a licence."""
    folder.mkdir(parents=True)
    built = folder.parent / "built"
    built.mkdir()
    found = subprocess.run("ldconfig -p 2>/dev/null || /sbin/ldconfig -p", shell=True, text=True, capture_output=True).stdout
    z = re.search(r"libz\.so\.1 \(libc6,x86-64\) => (\S+)", found)
    own_path = ["-Wl,-rpath,$ORIGIN", "-Wl,--enable-new-dtags", "-Wl,--no-as-needed", "-lm", *([z[1]] if z else [])]
    for wheel, number in pins(major).items():
        part = next((p for p in libraries(major) if p in wheel), None)
        place = f"nvidia/cu{major}" if major == "13" else f"nvidia/{part}"
        with zipfile.ZipFile(folder / f"{wheel.replace('-', '_')}-{number}-py3-none-manylinux_2_27_x86_64.whl", "w") as file:
            for name in libraries(major).get(part, []):
                file.write(compiled(built, name, *(own_path if part == "cudnn" else [])), f"{place}/lib/{name}")
            file.writestr(f"{place}/lib/libnvrtc.alt.so.{major}", "left out")
            file.writestr(f"{place}/lib/__init__.py", "")
            file.writestr(f"{wheel.replace('-', '_')}-{number}.dist-info/licenses/License.txt", f"the licence of {wheel}")
    return built, bool(z)


class PackageWithCuda(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.work)

    def make(self, *arguments, **environment):
        return run(PACKAGE / "make_package.sh", "--out", self.work / "archive.tar.gz", *arguments,
                   env={**os.environ, "PIP_NO_INDEX": "1", **environment})

    def refused(self, *arguments, tells, code=2):
        done = self.make(*arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertIn(tells, done.stderr)

    def configured(self, cuda):
        """Makes a folder that looks like a configured build."""
        folder = Path(tempfile.mkdtemp(dir=self.work))
        (folder / "CMakeCache.txt").write_text(f"TUTTI_EIGEN_NATIVE:BOOL=OFF\nTUTTI_BUILT_CUDA:INTERNAL={cuda}\n")
        return folder

    def test_arguments(self):
        self.refused("--cuda", tells="[--cuda] expected 12 or 13, the major version of CUDA, got none")
        self.refused("--cuda", "11", tells="[--cuda] expected 12 or 13, the major version of CUDA, got 11")
        self.refused("--wheels", tells="[--wheels] expected a value after it")

    def test_a_build_with_another_cuda(self):
        wheels = self.work / "none"
        for cuda, said in (("", "without CUDA"), ("13.0", "with CUDA 13.0")):
            build = self.configured(cuda)
            self.refused("--cuda", "12", "--build", build, "--wheels", wheels,
                         tells=f"[--cuda] expected a build with CUDA 12, got {build}, configured {said}. hint: leave --build out")
        self.assertFalse(wheels.exists(), "it fetches wheels for a build that it refuses")

    def test_message_names_the_supported_gpus(self):
        # These folders have no programs, so the script ends after its message.
        done = self.make("--build", self.configured(""))
        self.assertIn("the archive trains on processors only, because its programs are built without CUDA", done.stderr)
        self.assertIn("--cuda 12 or 13 fetches them", done.stderr)
        done = self.make("--build", self.configured("12.9"))
        self.assertIn("the archive trains on GPUs of hosts that have CUDA 12's NVRTC and cuBLAS, and cuDNN; --cuda 12 brings",
                      done.stderr)

    def test_unavailable_wheels(self):
        build = self.configured("12.9")
        self.refused("--cuda", "12", "--build", build, "--wheels", self.work / "empty", code=1,
                     tells="[--cuda] expected wheels from PyPI: nvidia-cuda-runtime-cu12==")
        bad = self.work / "bad"
        bad.mkdir()
        for wheel, number in pins("12").items():
            (bad / f"{wheel.replace('-', '_')}-{number}-py3-none-any.whl").write_text("no wheel")
        self.refused("--cuda", "12", "--build", build, "--wheels", bad, code=1,
                     tells="a wheel, got a file that is not a wheel")
        self.assertFalse((bad / "cuda-12" / "wheels.txt").exists())

    def test_every_wheel_has_one_version(self):
        for major in ("12", "13"):
            self.assertEqual({p for p in libraries(major) if any(p in wheel for wheel in pins(major))}, set(libraries(major)))
        cudnn = [int(n) for n in pins("12")["nvidia-cudnn-cu12"].split(".")]
        self.assertTrue([9, 8] <= cudnn[:2] <= [9, 10], "the archive for V100 has a cuDNN that does not compute on it")

    def test_the_archive(self):
        if not CUDA:
            self.skipTest("this build has no CUDA backend")
        wheels = self.work / "folder of wheels"
        built, z = make_wheels(wheels, CUDA)
        done = self.make("--native", "--build", BUILD, "--cuda", CUDA, "--wheels", wheels)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, rf"CUDA {CUDA}'s libraries take \S+: lib\S+ 0 MB, ")
        self.assertIn(f"the archive trains on GPUs of hosts that have NVIDIA's driver: it brings CUDA {CUDA}'s libraries",
                      done.stderr.splitlines()[-1])
        place = self.work / "another folder"
        place.mkdir()
        subprocess.run(["tar", "-xzf", self.work / "archive.tar.gz", "-C", place], check=True)
        top = place / "tutti"
        folder = top / "lib/tutti/cuda"
        brought = sorted(name for names in libraries(CUDA).values() for name in names)
        # The libraries are unchanged: not stripped, with their original paths.
        for name in brought:
            self.assertEqual((folder / name).read_bytes(), (built / name).read_bytes(), name)
        # The libraries that they need are next to them. The C library of the archive is a link.
        more = sorted({p.name for p in folder.iterdir()} - set(brought))
        self.assertEqual([n for n in more if n != "libz.so.1" and not (folder / n).is_symlink()], [])
        self.assertEqual(os.readlink(folder / "libm.so.6"), "../c/libm.so.6")
        if z:
            self.assertIn("libz.so.1", more)
        for link in more:
            self.assertTrue((folder / link).exists(), f"{link} leads nowhere")
        for wheel in pins(CUDA):
            self.assertEqual((top / f"share/tutti/package/licenses/{wheel}.txt").read_text(), f"the licence of {wheel}")
        about = (top / "share/tutti/package/about").read_text()
        self.assertRegex(about, rf"(?m)^cuda {CUDA}\.\d+$")
        self.assertIn("cuda_libraries own", about)

        # A program of the archive opens these libraries instead of those that the loader would find.
        probe = top / "bin" / "probe"
        (self.work / "probe.cpp").write_text(PROBE)
        headers = re.search(r"^CUDAdnn_INCLUDE_DIR:PATH=(.*)", CACHE, re.M)[1]
        done = run(CXX, "-std=c++20", "-I", ROOT / "include", "-I", BUILD / "include", "-isystem", headers,
                   self.work / "probe.cpp", "-o", probe, "-ldl")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = run(probe, *brought, env={**os.environ, "LD_LIBRARY_PATH": str(built)})
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual([os.path.realpath(p) for p in done.stdout.splitlines()], [os.path.realpath(folder / n) for n in brought])


class HostWithGpus(unittest.TestCase):
    """Tests that the set-up of a host logs why it does not use its GPUs: the archive was built without CUDA."""

    def test_the_log_of_a_host(self):
        with tempfile.TemporaryDirectory() as folder:
            about = Path(folder) / "about"
            self.assertFalse(host_files.package_lacks_cuda(about))
            for text, lacks in (("version 1\ncuda none\ncuda_libraries host\n", True), ("cuda 12.9\n", False), ("", False)):
                about.write_text(text)
                self.assertEqual(host_files.package_lacks_cuda(about), lacks, text)

        def logged(gpus, lacks):
            host = mock.Mock(env={"EFS_MOUNT": "/efs", "AWS_REGION": "r"}, shared=Path("/no/such"))
            host.more_variables.return_value = {}
            with mock.patch.object(host_setup, "gpu_count", lambda: gpus), \
                    mock.patch.object(host_setup, "package_lacks_cuda", lambda: lacks), \
                    mock.patch.object(host_setup.log, "warning") as warning:
                host_setup.HostSetup.leave_files(host, "10.0.0.1", ["10.0.0.2"])
            self.assertEqual(host.files.write_profile.call_args[0][0]["DEEPLEARNING_WORKER_GPU_COUNT"], gpus)
            return [c[0][0] % c[0][1:] for c in warning.call_args_list]
        self.assertEqual(logged(0, True), [])
        self.assertEqual(logged(8, False), [])
        self.assertEqual(len(logged(8, True)), 1)
        self.assertIn("8 GPUs, but the archive's programs have no CUDA backend", logged(8, True)[0])


if __name__ == "__main__":
    for needed in ("patchelf", "readelf", "mpirun"):
        if not shutil.which(needed):
            print(f"SKIP: no {needed} (Debian: apt-get install patchelf binutils openmpi-bin)")
            sys.exit(77)
    program = unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]], exit=False)
    for case, why in program.result.skipped:
        print(f"SKIP: {case.id()}: {why}")
    sys.exit(1 if not program.result.wasSuccessful() else 77 if program.result.skipped else 0)
