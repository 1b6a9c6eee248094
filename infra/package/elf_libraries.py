#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Finds the shared libraries of programs from their ELF headers, as ldd does, but runs no file: the files may be for another processor.

  elf_libraries.py [--root FOLDER] [--also FOLDER]... FILE...     prints a line "NAME PATH" for each library, also those of libraries
  elf_libraries.py --processor FILE                               prints the processor of a program, such as aarch64
  elf_libraries.py --loader FILE                                  prints the loader that a program names

--root FOLDER  folder with the libraries of the programs' system; default: /, the system of this machine
--also FOLDER  is searched before the folders of the system; may be repeated

It searches the paths in the files' headers (RPATH, RUNPATH, with $ORIGIN), the folders of FOLDER/etc/ld.so.conf, and those of the
C library. A library for another processor is passed over. Exit code 1: a library is not found. 3: a file is not an ELF program of a
known processor. Links below FOLDER that lead to absolute paths stay below FOLDER.
"""
import argparse
import os
import re
import struct
import sys
from pathlib import Path

# e_machine of ELF files, with the names that `uname -m` has for them.
MACHINES = {62: "x86_64", 183: "aarch64"}
# Bounds for what a file may claim.
MOST_HEADERS, MOST_DYNAMIC, MOST_NAME = 1024, 65536, 4096
PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_RPATH, DT_RUNPATH = 1, 5, 10, 15, 29


class NotElf(ValueError):
    """The file is not an ELF file that a loader of a known processor accepts."""


class Elf:
    """The parts of an ELF file that the loader reads: processor, loader, needed (names of libraries), paths (of libraries)."""

    def __init__(self, path):
        with open(path, "rb") as file:
            head = file.read(64)
            if len(head) < 64 or head[:4] != b"\x7fELF":
                raise NotElf("a file without an ELF header")
            if head[4] != 2 or head[5] != 1:
                raise NotElf("an ELF file that is not 64-bit little-endian")
            kind, machine = struct.unpack_from("<HH", head, 16)
            if machine not in MACHINES:
                raise NotElf(f"processor {machine} of ELF")
            if kind not in (2, 3):
                raise NotElf(f"an ELF file of type {kind}, which is no program or shared library")
            self.processor = MACHINES[machine]
            self._size = os.fstat(file.fileno()).st_size
            self._file = file
            self._read_headers(*struct.unpack_from("<Q", head, 32), *struct.unpack_from("<HH", head, 54))
            del self._file

    def _part(self, at, size, what):
        if at > self._size or size > self._size - at:
            raise NotElf(f"{what} that lies after the end of the file")
        self._file.seek(at)
        return self._file.read(size)

    def _read_headers(self, at, size, count):
        if size != 56 or count > MOST_HEADERS:
            raise NotElf(f"{count} program headers of {size} bytes")
        table = self._part(at, size * count, "a table of program headers")
        self.loader, self.needed, self.paths = "", [], []
        loads, dynamic = [], None
        for k in range(count):
            kind, _, offset, address, _, in_file, _, _ = struct.unpack_from("<IIQQQQQQ", table, k * size)
            if kind == PT_LOAD:
                loads.append((address, offset, in_file))
            elif kind == PT_DYNAMIC:
                dynamic = offset, in_file
            elif kind == PT_INTERP:
                if not 2 <= in_file <= MOST_NAME:
                    raise NotElf(f"a loader's name of {in_file} bytes")
                self.loader = os.fsdecode(self._part(offset, in_file, "a loader's name").split(b"\0")[0])
        if dynamic:
            self._read_dynamic(*dynamic, loads)

    def _read_dynamic(self, at, size, loads):
        if size > MOST_DYNAMIC * 16:
            raise NotElf(f"a dynamic section of {size} bytes")
        table = self._part(at, size // 16 * 16, "a dynamic section")
        entries = []
        for tag, value in struct.iter_unpack("<QQ", table):
            if tag == 0:
                break
            entries.append((tag, value))
        values = dict(entries)
        wanted = [(tag, value) for tag, value in entries if tag in (DT_NEEDED, DT_RPATH, DT_RUNPATH)]
        if not wanted:
            return
        strings = values.get(DT_STRTAB, 0)
        place = next((offset + strings - address for address, offset, in_file in loads if address <= strings < address + in_file), None)
        if place is None or values.get(DT_STRSZ, 0) == 0:
            raise NotElf("names of libraries outside of the file")
        texts = self._part(place, values[DT_STRSZ], "a table of names")

        def text(value):
            end = texts.find(b"\0", value) if value < len(texts) else -1
            if not 0 <= end - value <= MOST_NAME:
                raise NotElf("a name that has no end")
            return os.fsdecode(texts[value:end])

        self.needed = [text(value) for tag, value in wanted if tag == DT_NEEDED]
        runpath = [value for tag, value in wanted if tag == DT_RUNPATH]  # counts alone, if there is one
        self.paths = [path for value in runpath or [value for tag, value in wanted if tag == DT_RPATH] for path in text(value).split(":")]


def inside(root, path):
    """Returns the real path of `path` of the system below `root`: an absolute link leads to a file below root. Or None."""
    parts, at, links = [part for part in reversed(str(path).split("/")) if part], Path(root), 0
    while parts:
        part = parts.pop()
        if part == ".":
            continue
        if part == "..":
            at = at.parent if at != Path(root) else at
            continue
        at = at / part
        if at.is_symlink():
            links += 1
            if links > 40:
                return None
            target = os.readlink(at)
            at = Path(root) if target.startswith("/") else at.parent
            parts += [one for one in reversed(target.split("/")) if one]
        elif not at.exists():
            return None
    return at


def folders_of_conf(root, path="/etc/ld.so.conf", depth=0):
    """Returns the folders that ld.so.conf names, with those of the files that it includes."""
    real = inside(root, path)
    if real is None or not real.is_file() or depth > 8:
        return []
    found = []
    for line in real.read_text(errors="replace").splitlines():
        line = line.partition("#")[0].strip()
        if line.startswith("include "):
            for pattern in line.split()[1:]:
                folder, _, name = (pattern if pattern.startswith("/") else os.path.dirname(path) + "/" + pattern).rpartition("/")
                of = inside(root, folder)
                if of and of.is_dir():
                    for one in sorted(of.glob(name)):
                        found += folders_of_conf(root, f"{folder}/{one.name}", depth + 1)
        elif line.startswith("/"):
            found.append(line)
    return found


class System:
    """The libraries of the system below `root`, for programs of one processor."""

    def __init__(self, root, processor, also=()):
        self.root, self.processor = Path(root).resolve(), processor
        triplet = f"{processor}-linux-gnu"
        self.also = [Path(one).resolve() for one in also]
        self.folders = folders_of_conf(self.root) + [f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]

    def fits(self, path):
        if path is None or not path.is_file():
            return False
        try:
            return Elf(path).processor == self.processor
        except (NotElf, OSError):
            return False

    def find(self, name, elf, path):
        """Returns the real path of a library that `elf`, the file `path`, needs, or None."""
        if "/" in name or name in ("", ".", ".."):
            return None
        below = Path(path).resolve()
        for place in elf.paths:
            if re.search(r"\$(ORIGIN\b|\{ORIGIN\})", place):
                real = Path(os.path.normpath(re.sub(r"\$(ORIGIN\b|\{ORIGIN\})", lambda _: str(below.parent), place)), name)
                real = real.resolve() if real.exists() else None
            else:
                real = inside(self.root, f"{place}/{name}") if place.startswith("/") else None
            if self.fits(real):
                return real
        for folder in self.also:
            if self.fits(folder / name):
                return (folder / name).resolve()
        for folder in self.folders:
            real = inside(self.root, f"{folder}/{name}")
            if self.fits(real):
                return real
        return None

    def libraries(self, files):
        """Returns {name: real path, or None} of all libraries that the files and their libraries need, in the order of the search."""
        found, queue = {}, [(Path(file), Elf(file)) for file in files]
        for path, elf in queue:  # which grows
            for name in elf.needed:
                if name not in found:
                    found[name] = self.find(name, elf, path)
                    if found[name]:
                        queue.append((found[name], Elf(found[name])))
        return found


def fail(code, where, expected, got, hint=""):
    sys.stderr.write(f"elf_libraries.py: [{where}] expected {expected}, got {got}.{f' hint: {hint}.' if hint else ''}\n")
    sys.exit(code)


def read(path):
    try:
        return Elf(path)
    except (NotElf, OSError) as why:
        return fail(3, path, f"a program or library for Linux on {' or '.join(MACHINES.values())}", why)


def main():
    a = argparse.ArgumentParser(prog="elf_libraries.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--root", type=Path, default=Path("/"))
    a.add_argument("--also", type=Path, action="append", default=[])
    a.add_argument("--processor", action="store_true")
    a.add_argument("--loader", action="store_true")
    a.add_argument("files", nargs="+", type=Path, metavar="FILE")
    o = a.parse_args()
    for folder in (o.root, *o.also):
        if not folder.is_dir():
            fail(2, "--root" if folder == o.root else "--also", "a folder", folder)
    files = {path: read(path) for path in o.files}
    if o.processor or o.loader:
        for elf in files.values():
            print(elf.processor if o.processor else elf.loader)
        return
    processors = sorted({elf.processor for elf in files.values()})
    if len(processors) > 1:
        fail(3, "files", "files for one processor", ", ".join(processors))
    found = System(o.root, processors[0], o.also).libraries(o.files)
    for name, path in found.items():
        if path:
            print(name, path)
    missing = [name for name, path in found.items() if not path]
    if missing:
        fail(1, ", ".join(missing), f"libraries for {processors[0]} below {o.root}", "none")


if __name__ == "__main__":
    main()
