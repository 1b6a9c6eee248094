#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# needs: stage
"""Tests the bill of materials of the installation: it has the fields that SPDX 2.3 requires, an entry for each component that
CMake found, and the version that CMake found. Two writings have the same bytes. A wrong table is refused."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ["TUTTI_SOURCE_DIR"])
BUILD = Path(os.environ["TUTTI_BUILD_DIR"])
WRITE = ROOT / "cmake" / "bill_of_materials.py"
BILL = Path(os.environ.get("STAGED_INSTALL", BUILD / "stage"), "prefix", "share", "doc", "tutti", "tutti.spdx.json")
# https://spdx.github.io/spdx-spec/v2.3/: the ids of licences that tutti's dependencies have, and names of relationships.
LICENCES = {"MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSD-3-Clause-Open-MPI", "MPL-2.0", "GPL-2.0-only", "GPL-3.0-or-later", "LGPL-2.1-only",
            "LGPL-2.1-or-later", "LGPL-3.0-or-later", "IJG", "Zlib", "ISC", "Unlicense"}
EXCEPTIONS = {"GCC-exception-3.1", "LLVM-exception"}
RELATIONSHIPS = {"DESCRIBES", "CONTAINS", "STATIC_LINK", "DYNAMIC_LINK", "OPTIONAL_DEPENDENCY_OF", "TEST_DEPENDENCY_OF", "BUILD_TOOL_OF"}
ID = re.compile(r"SPDXRef-[A-Za-z0-9.-]+")


def licence_complaint(text, extracted):
    for part in re.split(r" (?:AND|OR) ", text):
        name, _, exception = part.strip("()").partition(" WITH ")
        if name not in LICENCES and name not in extracted or exception and exception not in EXCEPTIONS:
            return f"{part} is no licence of SPDX"
    return None


def complaints(spdx):
    """Returns what a document of SPDX 2.3 may not have, or lacks."""
    found = [f"{key} is not {value}" for key, value in (("spdxVersion", "SPDX-2.3"), ("dataLicense", "CC0-1.0"), ("SPDXID", "SPDXRef-DOCUMENT"))
             if spdx.get(key) != value]
    if not re.fullmatch(r"https://[^\s#]+", spdx.get("documentNamespace", "")):
        found.append("documentNamespace is no URI without a fragment")
    if not spdx.get("name"):
        found.append("no name")
    creation = spdx.get("creationInfo", {})
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", creation.get("created", "")):
        found.append("created is no time in UTC")
    if not creation.get("creators") or not all(re.match(r"(Tool|Person|Organization): .", c) for c in creation["creators"]):
        found.append("no creator")
    extracted = {one["licenseId"] for one in spdx.get("hasExtractedLicensingInfos", []) if one.get("extractedText")}
    ids = {"SPDXRef-DOCUMENT"}
    for package in spdx.get("packages", []):
        name = package.get("name")
        if not name or not package.get("downloadLocation") or not ID.fullmatch(package.get("SPDXID", "")):
            found.append(f"{name}: no name, id or place")
        if package.get("SPDXID") in ids:
            found.append(f"{name}: its id is not unique")
        ids.add(package.get("SPDXID"))
        if package.get("filesAnalyzed") is not False:
            found.append(f"{name}: filesAnalyzed needs a code of verification")
        for key in ("licenseConcluded", "licenseDeclared"):
            if package.get(key) != "NOASSERTION" and licence_complaint(package.get(key, ""), extracted):
                found.append(f"{name}: {licence_complaint(package.get(key, ''), extracted)}")
        for sum_ in package.get("checksums", []):
            if sum_.get("algorithm") != "SHA256" or not re.fullmatch("[0-9a-f]{64}", sum_.get("checksumValue", "")):
                found.append(f"{name}: {sum_} is no checksum")
    relations = spdx.get("relationships", [])
    for relation in relations:
        if {relation.get("spdxElementId"), relation.get("relatedSpdxElement")} - ids or relation.get("relationshipType") not in RELATIONSHIPS:
            found.append(f"{relation} is no relationship of these packages")
    if not any(r["relationshipType"] == "DESCRIBES" and r["spdxElementId"] == "SPDXRef-DOCUMENT" for r in relations):
        found.append("it describes no package")
    return found


class Bill(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = Path(folder.name)

    def write(self, *arguments, table=BUILD / "dependencies.tsv", epoch="1700000000"):
        out = self.work / "bill.json"
        done = subprocess.run([sys.executable, WRITE, "--dependencies", table, "--version", "1.2.3", "--out", out, *map(str, arguments)], text=True,
                              capture_output=True, env=dict(os.environ, SOURCE_DATE_EPOCH=epoch), timeout=60)
        return done, out

    def test_installed_bill(self):
        spdx = json.loads(BILL.read_text())
        self.assertEqual(complaints(spdx), [])

    def test_each_component_has_an_entry(self):
        packages = json.loads(BILL.read_text())["packages"]
        built = dict(re.findall(r"^TUTTI_BUILT_([A-Z0-9_]+):INTERNAL=(.+)$", (BUILD / "CMakeCache.txt").read_text(), re.M))
        self.assertTrue(built)
        for component, version in built.items():
            of = [p for p in packages if f"; component {component.lower()}" in p.get("comment", "")]
            self.assertTrue(of, f"no entry for {component}")
            self.assertTrue(all(re.match(r"linked: (header-only|shared|static|dlopen);", p["comment"]) for p in of), of)
            if component != "MPI":  # has the version of the product, not of the standard
                self.assertIn(version, [p.get("versionInfo") for p in of], component)
        # A program that is linked with a shared library says so.
        linked = {"libdnnl": "oneDNN", "libmpi": "Open MPI", "libgloo": "Gloo", "libzmq": "ZeroMQ", "libssl": "OpenSSL", "libjpeg": "libjpeg-turbo", "libgomp": "OpenMP runtime"}
        program = BUILD / "examples" / "train_cifar10"
        if program.exists():
            needed = subprocess.run(["readelf", "-dW", program], text=True, capture_output=True, check=True).stdout
            for library in re.findall(r"\(NEEDED\).*\[(lib[a-z]+)", needed):
                if library in linked:
                    entry = [p for p in packages if p["name"] == linked[library]]
                    self.assertTrue(entry and "linked: shared" in entry[0]["comment"], library)

    def test_checks_find_what_is_wrong(self):
        spdx = json.loads(BILL.read_text())
        for change in ({"spdxVersion": "SPDX-2.2"}, {"creationInfo": {}}, {"documentNamespace": "x#y"}, {"relationships": []},
                       {"packages": spdx["packages"][:1]}, {"packages": [*spdx["packages"], spdx["packages"][0]]},
                       {"packages": [{**spdx["packages"][0], "licenseDeclared": "Foo-1.0"}, *spdx["packages"][1:]]}):
            self.assertTrue(complaints({**spdx, **change}), change)

    def test_bundled_files(self):
        libraries = self.work / "prefix" / "lib"
        libraries.mkdir(parents=True)
        program = BUILD / "examples" / "train_cifar10"
        text = subprocess.run(["ldd", program if program.exists() else "/bin/sh"], text=True, capture_output=True, check=True).stdout
        names = {}
        for name, path in re.findall(r"(\S+) => (/\S+)", text):
            names[name] = path
            (libraries / name).write_bytes(Path(path).read_bytes())
        (libraries / "notes.txt").write_text("no library")
        arguments = ("--bundled", libraries, "--root", self.work / "prefix", "--licences", self.work / "licences")
        done, out = self.write(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        first, spdx = out.read_bytes(), json.loads(out.read_text())
        self.assertEqual(complaints(spdx), [])
        self.assertEqual(spdx["creationInfo"]["created"], "2023-11-14T22:13:20Z")
        bundled = {p["packageFileName"]: p for p in spdx["packages"] if "packageFileName" in p}
        self.assertEqual(set(bundled), {f"lib/{name}" for name in names})
        c = bundled["lib/libc.so.6"]
        if Path("/usr/share/doc/libc6/copyright").exists():
            self.assertEqual((c["name"], c["licenseDeclared"]), ("libc6", "LGPL-2.1-or-later"))
            self.assertTrue((self.work / "licences" / "libc6.txt").read_text())
        self.assertEqual(self.write(*arguments)[1].read_bytes(), first, "the second writing differs")
        (libraries / "libc.so.6").write_bytes(b"\x7fELF")
        self.assertNotEqual(json.loads(self.write(*arguments)[1].read_text())["documentNamespace"], spdx["documentNamespace"])

    def test_installation_without_a_bill(self):
        """An error removes the temporary folder. A python3 that is gone is not an error."""
        python, build = self.work / "python", self.work / "build"
        build.mkdir()
        python.write_text('#!/bin/sh\nwhile [ "$1" != --out ]; do shift; done\nmkdir -p "${2%/*}"\nexit 3\n')
        python.chmod(0o755)
        command = ["cmake", f"-Dtutti_python={python}", f"-Dtutti_build_dir={build}", "-Dtutti_doc_dir=doc", "-Dtutti_version=1",
                   f"-DCMAKE_INSTALL_PREFIX={self.work / 'prefix'}", "-P", ROOT / "cmake" / "install_bill_of_materials.cmake"]
        done = subprocess.run(command, text=True, capture_output=True, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("the bill of materials cannot be made: 3", done.stderr)
        self.assertEqual(list(build.iterdir()), [])
        python.unlink()
        done = subprocess.run(command, text=True, capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Not installed, because it takes python3", done.stdout + done.stderr)

    def test_wrong_input(self):
        table = self.work / "table"
        for text, tells in (("a\tb\n", "line 1"), ("Eigen\t3.4\tMPL-2.0\tby magic\t\t\n", "linked as one of header-only"),
                            ("Eigen\t3.4\tLicenseRef-Mine\tshared\t\t\n", "a licence of SPDX's list"), ("Eigen\t3.4\t\tshared\t\t\n", "line 1")):
            table.write_text(text)
            done, _ = self.write(table=table)
            self.assertEqual(done.returncode, 2, text)
            self.assertIn(tells, done.stderr)
        self.assertIn("[--dependencies] expected", self.write(table=self.work / "none")[0].stderr)
        self.assertIn("[--bundled] expected a folder", self.write("--bundled", self.work / "none")[0].stderr)
        self.assertIn("[SOURCE_DATE_EPOCH] expected seconds", self.write(epoch="today")[0].stderr)


if __name__ == "__main__":
    if not BILL.exists():
        print("SKIP: no bill of materials in the staged installation, which packaging/stage makes with python3")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
