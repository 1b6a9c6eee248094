#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# fast
"""Tests infra/package/elf_libraries.py with files that the test writes: search paths, links, files for another processor, and files
that are damaged or lie about their sizes. On programs of this machine it finds what ldd finds."""
import importlib.util
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

FIND = Path(os.environ["TUTTI_SOURCE_DIR"]) / "infra" / "package" / "elf_libraries.py"
X86_64, AARCH64, RISCV = 62, 183, 243
NEEDED, STRTAB, STRSZ, RPATH, RUNPATH = 1, 5, 10, 15, 29
spec = importlib.util.spec_from_file_location("elf_libraries", FIND)
module = importlib.util.module_from_spec(spec)
sys.dont_write_bytecode = True
spec.loader.exec_module(module)


def elf(needed=(), machine=AARCH64, rpath="", runpath="", loader="", kind=3):
    """Returns the bytes of an ELF file with a header, program headers, a dynamic section and its names."""
    names, entries = b"\0", []
    for tag, text in [*((NEEDED, name) for name in needed), (RPATH, rpath), (RUNPATH, runpath)]:
        if text:
            entries.append((tag, len(names)))
            names += text.encode() + b"\0"
    count, base = 3 if loader else 2, 0x10000
    at = 64 + 56 * count
    strings = at + 16 * (len(entries) + 3)
    entries += [(STRTAB, base + strings), (STRSZ, len(names)), (0, 0)]
    interpreter = strings + len(names)
    size = interpreter + len(loader) + 1
    head = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9) + struct.pack("<HHIQQQIHHHHHH", kind, machine, 1, 0, 64, 0, 0, 64, 56, count, 64, 0, 0)
    table = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 4096) + struct.pack("<IIQQQQQQ", 2, 6, at, base + at, base + at, 16 * len(entries), 0, 8)
    if loader:
        table += struct.pack("<IIQQQQQQ", 3, 4, interpreter, 0, 0, len(loader) + 1, 0, 1)
    return head + table + b"".join(struct.pack("<QQ", *entry) for entry in entries) + names + loader.encode() + b"\0"


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = Path(folder.name).resolve()
        self.root = self.work / "root"
        self.system = self.root / "usr/lib/aarch64-linux-gnu"
        self.system.mkdir(parents=True)
        self.program = self.write("bin/program", needed=["liba.so.1"], loader="/lib/ld-linux-aarch64.so.1")

    def write(self, name, folder=None, **of):
        path = (folder or self.work) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(elf(**of))
        return path

    def find(self, *arguments):
        done = subprocess.run([sys.executable, FIND, *map(str, arguments)], text=True, capture_output=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    def found(self, program, also=()):
        """Returns what the script prints, without starting it."""
        found = module.System(self.root, module.Elf(program).processor, also).libraries([program])
        return {name: str(path) for name, path in found.items() if path}

    def test_libraries_of_libraries(self):
        self.write("liba.so.1", self.system, needed=["libb.so.2", "libc.so.6"])
        self.write("libb.so.2.0.1", self.root / "lib", needed=["liba.so.1"])  # a circle
        (self.root / "lib/libb.so.2").symlink_to("libb.so.2.0.1")
        self.write("libc.so.6", self.root / "lib/aarch64-linux-gnu")
        self.assertEqual(self.found(self.program), {"liba.so.1": str(self.system / "liba.so.1"), "libb.so.2": str(self.root / "lib/libb.so.2.0.1"),
                                                    "libc.so.6": str(self.root / "lib/aarch64-linux-gnu/libc.so.6")})
        status, out, told = self.find("--root", self.root, self.program)
        self.assertEqual((status, told), (0, ""))
        self.assertEqual(dict(line.split(" ", 1) for line in out.splitlines()), self.found(self.program))
        self.assertEqual(self.find("--processor", self.program)[1], "aarch64\n")
        self.assertEqual(self.find("--loader", self.program)[1], "/lib/ld-linux-aarch64.so.1\n")

    def test_absolute_links_and_paths_stay_below_the_root(self):
        real = self.write("opt/own/liba.so.1.5", self.root)
        (self.system / "liba.so.1").symlink_to("/opt/own/liba.so.1.5")
        self.assertEqual(self.found(self.program), {"liba.so.1": str(real)})
        (self.system / "liba.so.1").unlink()
        (self.system / "liba.so.1").symlink_to("../../../../../../../../../../opt/own/liba.so.1.5")
        self.assertEqual(self.found(self.program), {"liba.so.1": str(real)})
        (self.system / "liba.so.1").unlink()
        (self.system / "liba.so.1").symlink_to("liba.so.1")  # to itself
        self.assertEqual(self.found(self.program), {})
        program = self.write("bin/program", needed=["liba.so.1.5"], rpath="/nothing:/opt/own")
        self.assertEqual(self.found(program), {"liba.so.1.5": str(real)})

    def test_a_path_of_the_program(self):
        own = self.write("lib/own/liba.so.1")
        self.write("liba.so.1", self.system)
        for paths in ({"rpath": "$ORIGIN/../lib/own"}, {"runpath": "/x:${ORIGIN}/../lib/own"}, {"rpath": "/x", "runpath": "$ORIGIN/../lib/own"}):
            program = self.write("bin/program", needed=["liba.so.1"], **paths)
            self.assertEqual(self.found(program), {"liba.so.1": str(own)}, paths)
        # RUNPATH replaces RPATH.
        program = self.write("bin/program", needed=["liba.so.1"], rpath="$ORIGIN/../lib/own", runpath="/x")
        self.assertEqual(self.found(program), {"liba.so.1": str(self.system / "liba.so.1")})
        other = self.write("other/liba.so.1")
        self.assertEqual(self.found(program, [other.parent]), {"liba.so.1": str(other)})

    def test_folders_of_ld_so_conf(self):
        conf = self.root / "etc/ld.so.conf"
        (conf.parent / "ld.so.conf.d").mkdir(parents=True)
        conf.write_text("# folders\ninclude /etc/ld.so.conf.d/*.conf\ninclude /etc/ld.so.conf\n")  # includes itself
        (conf.parent / "ld.so.conf.d/a.conf").write_text("/opt/a # comment\nrelative\n")
        real = self.write("opt/a/liba.so.1", self.root)
        self.assertEqual(self.found(self.program), {"liba.so.1": str(real)})

    def test_a_library_for_another_processor_is_passed_over(self):
        self.write("liba.so.1", self.root / "lib/aarch64-linux-gnu", machine=X86_64)
        self.assertEqual(self.found(self.program), {})
        right = self.write("liba.so.1", self.root / "usr/lib")
        self.assertEqual(self.found(self.program), {"liba.so.1": str(right)})
        x86 = self.write("bin/x86", needed=["liba.so.1"], machine=X86_64)
        status, _, told = self.find("--root", self.root, x86)
        self.assertEqual((status, told), (1, f"elf_libraries.py: [liba.so.1] expected libraries for x86_64 below {self.root}, got none.\n"))
        status, _, told = self.find("--root", self.root, self.program, x86)
        self.assertEqual((status, told), (3, "elf_libraries.py: [files] expected files for one processor, got aarch64, x86_64.\n"))

    def test_files_that_are_no_programs(self):
        good = elf(needed=["liba.so.1"], loader="/lib/ld.so")

        def changed(at, form, *values):
            data = bytearray(good)
            struct.pack_into(form, data, at, *values)
            return bytes(data)

        dynamic = 64 + 56
        for data, tells in ((b"", "without an ELF header"), (b"#!/bin/sh\nexit 0\n" * 9, "without an ELF header"), (good[:63], "without an ELF header"),
                            (changed(4, "B", 1), "not 64-bit little-endian"), (changed(5, "B", 2), "not 64-bit little-endian"),
                            (changed(18, "<H", RISCV), "processor 243 of ELF"), (changed(16, "<H", 1), "of type 1"),
                            (changed(54, "<H", 55), "of 55 bytes"), (changed(56, "<H", 65535), "65535 program headers"),
                            (changed(32, "<Q", 2**63), "after the end"), (good[:200], "after the end"),
                            (changed(dynamic + 8, "<Q", 2**64 - 8), "after the end"), (changed(dynamic + 32, "<Q", 2**60), "a dynamic section of"),
                            (changed(dynamic + 56 + 32, "<Q", 2**40), "a loader's name of"), (changed(64 + 56 * 3 + 8, "<Q", 2**50), "no end"),
                            (changed(64 + 56 * 3 + 24, "<Q", 4), "outside of the file"), (changed(64 + 56 * 3 + 40, "<Q", 2**40), "after the end"),
                            (changed(64 + 56 * 3 + 40, "<Q", 3), "no end")):
            path = self.work / "bad"
            path.write_bytes(data)
            with self.assertRaises(module.NotElf) as refused:
                module.Elf(path)
            self.assertIn(tells, str(refused.exception))
            # Such a file is not taken for a library.
            shutil.copy(path, self.system / "liba.so.1")
            self.assertEqual(self.found(self.program), {})
        for option in ("--processor", "--loader", "--root=/"):
            self.assertEqual(self.find(option, path), (3, "", f"elf_libraries.py: [{path}] expected a program or library for Linux on x86_64 or aarch64, "
                                                              "got a name that has no end.\n"))

    def test_damaged_files_end_with_a_message(self):
        """Each result is a list of names or NotElf, never another error. The seed is fixed."""
        good, chance, path, refused = elf(needed=["liba.so.1", "libb.so"], rpath="$ORIGIN", loader="/lib/ld.so"), random.Random(7), self.work / "bad", 0
        for _ in range(3000):
            data = bytearray(good)
            for _ in range(chance.randint(1, 4)):
                data[chance.randrange(16, len(data))] = chance.choice((0, 1, 127, 128, 255))
            path.write_bytes(bytes(data[:chance.choice((len(data), chance.randrange(len(data))))]))
            try:
                module.Elf(path)
            except module.NotElf:
                refused += 1
        self.assertGreater(refused, 500)

    def test_names_and_arguments(self):
        outside = self.write("liba.so.1")
        program = self.write("bin/program", needed=[f"../../../../..{outside}", ".."])
        self.assertEqual(self.found(program), {})
        for arguments, tells in (((self.work / "none",), "No such file"), (("--root", self.work / "none", program), "[--root] expected a folder"),
                                 (("--also", self.work / "none", program), "[--also] expected a folder")):
            status, _, told = self.find(*arguments)
            self.assertIn(status, (2, 3))
            self.assertIn(tells, told)

    def test_like_ldd(self):
        if not shutil.which("ldd") or os.uname().machine not in ("x86_64", "aarch64"):
            self.skipTest("no ldd, or another processor")
        program = Path(sys.executable).resolve()
        lines = subprocess.run(["ldd", program], text=True, capture_output=True, check=True).stdout.splitlines()
        want = {line.split()[0]: str(Path(line.split()[2]).resolve()) for line in lines if " => /" in line}
        status, out, told = self.find(program)
        self.assertEqual(status, 0, told)
        got = dict(line.split(" ", 1) for line in out.splitlines())
        self.assertTrue(want)
        self.assertEqual({name: path for name, path in got.items() if not name.startswith("ld-linux")}, want)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
