#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the bill of materials of an installation as SPDX 2.3 JSON. cmake --install and infra/package run it.

  bill_of_materials.py --dependencies TABLE --version VERSION --out FILE [--bundled FOLDER [--root FOLDER] [--sysroot FOLDER] [--licences FOLDER]]

TABLE is build/dependencies.tsv, which CMake writes: a line for each library that it found, with its name, version, licence,
way of linking, component and Debian packages. --bundled adds an entry for each shared library, program and plugin below
FOLDER that comes from a Debian package: its package, version, licence and SHA-256. Names of files are relative to --root.
--sysroot: the files are from the Debian packages that infra/package/sysroot.sh has unpacked there, and not from those of this machine.
--licences copies the texts of their licences there. SOURCE_DATE_EPOCH is the time of creation. Equal input gives equal bytes.
"""
import argparse
import datetime
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import uuid
from pathlib import Path

COLUMNS = ("name", "version", "licence", "linked", "component", "debian")
# Ways of linking, with the relationship of SPDX and what the entry says.
LINKED = {
    "header-only": ("STATIC_LINK", "compiled into the programs from headers"),
    "static": ("STATIC_LINK", "linked statically"),
    "shared": ("DYNAMIC_LINK", "linked dynamically"),
    "dlopen": ("OPTIONAL_DEPENDENCY_OF", "opened by dlopen when a program needs it, from the host"),
    "test": ("TEST_DEPENDENCY_OF", "used by the tests, not in any package"),
    "tool": ("BUILD_TOOL_OF", "used by the build, not in any package"),
}
REVERSED = {"OPTIONAL_DEPENDENCY_OF", "TEST_DEPENDENCY_OF", "BUILD_TOOL_OF"}
# Licences that are not in SPDX's list, with the place of their text.
OTHER = {"LicenseRef-NVIDIA-CUDA": "NVIDIA's Software Licence Agreement and CUDA Supplement, https://docs.nvidia.com/cuda/eula/",
         "LicenseRef-NVIDIA-cuDNN": "NVIDIA's cuDNN Supplement, https://docs.nvidia.com/deeplearning/cudnn/latest/reference/eula.html"}
# Licences of the libraries in Debian's source packages. A source package that is not in the table has the licence
# NOASSERTION, and the text of its copyright file counts.
GCC = "GPL-3.0-or-later WITH GCC-exception-3.1"
SOURCES = {
    "glibc": "LGPL-2.1-or-later", "onednn": "Apache-2.0", "gloo": "BSD-3-Clause", "openmpi": "BSD-3-Clause-Open-MPI",
    "pmix": "BSD-3-Clause-Open-MPI", "zeromq3": "LGPL-3.0-or-later", "openssl": "Apache-2.0", "libjpeg-turbo": "IJG AND BSD-3-Clause AND Zlib",
    "hiredis": "BSD-3-Clause", "rdma-core": "BSD-2-Clause OR GPL-2.0-only", "hwloc": "BSD-3-Clause", "ocl-icd": "BSD-2-Clause",
    "libsodium": "ISC", "libpgm": "LGPL-2.1-or-later", "krb5": "MIT", "libnl3": "LGPL-2.1-only", "zlib": "Zlib",
    "libevent": "BSD-3-Clause", "systemd": "LGPL-2.1-or-later", "keyutils": "LGPL-2.1-or-later", "e2fsprogs": "MIT",
}
# Libraries of wheels from PyPI, by the first letters of their names.
OF_WHEELS = {"libnvrtc": "LicenseRef-NVIDIA-CUDA", "libcublas": "LicenseRef-NVIDIA-CUDA", "libcudnn": "LicenseRef-NVIDIA-cuDNN",
             "libnccl": "BSD-3-Clause"}


def fail(where, expected, got, code=2):
    sys.stderr.write(f"bill_of_materials.py: [{where}] expected {expected}, got {got}.\n")
    sys.exit(code)


def identifier(text):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]+", "-", text)


def read_table(path):
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as why:
        fail("--dependencies", "the table that CMake writes", why)
    for number, line in enumerate(lines, 1):
        row = line.split("\t")
        if len(row) != len(COLUMNS) or not row[0] or not row[2] or row[3] not in LINKED:
            fail(f"{path} line {number}", f"{', '.join(COLUMNS)}, linked as one of {', '.join(LINKED)}", repr(line))
        rows.append(dict(zip(COLUMNS, row)))
    return sorted(rows, key=lambda row: tuple(row.values()))


def package(name, **fields):
    """Returns an entry of `packages`. Leaves out empty fields."""
    entry = {"SPDXID": identifier(f"Package-{name}"), "name": name, "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
             "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION"}
    entry.update({key: value for key, value in fields.items() if value})
    return entry


def of_debian(names, sysroot):
    """Returns {name of a file: (package, version, source package)} for files of the Debian packages below sysroot."""
    owners, machine = {}, platform.machine() if sysroot == Path("/") else "aarch64"
    # dpkg-query -S takes a minute for some dozens of names on a machine with many packages.
    for listed in sorted((sysroot / "var/lib/dpkg/info").glob("*.list")):
        for path in listed.read_text(encoding="utf-8", errors="replace").split("\n"):
            name = path.rpartition("/")[2]
            # A machine may have the same library for other processors.
            if name in names and (name not in owners or f"/{machine}-linux-gnu/" in path):
                owners[name] = listed.name[:-len(".list")]
    if not owners:
        return {}
    facts = subprocess.run(["dpkg-query", f"--admindir={sysroot / 'var/lib/dpkg'}", "-W", "-f", "${binary:Package}\t${Package}\t${Version}\t${source:Package}\n", *sorted(set(owners.values()))],
                           text=True, capture_output=True, check=False).stdout
    about = {}
    for row in (line.split("\t") for line in facts.splitlines()):
        about[row[0]] = about[row[1]] = tuple(row[1:])
    return {name: about[owner] for name, owner in owners.items() if owner in about}


def bundled_files(folder):
    """Returns the ELF files of the folder, without links."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def sha256(path):
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def add_bundled(folder, root, sysroot, licences, packages, relations):
    files = list(bundled_files(folder))
    owners = of_debian({path.name for path in files}, sysroot)
    for path in files:
        debian, version, source = owners.get(path.name, ("", "", ""))
        name = path.relative_to(root).as_posix()
        licence = GCC if re.fullmatch(r"gcc-\d+", source) else SOURCES.get(source, "NOASSERTION")
        if not debian:
            licence = next((of for start, of in OF_WHEELS.items() if path.name.startswith(start)), licence)
        text = sysroot / "usr/share/doc" / debian / "copyright"
        if debian and licences and text.is_file():
            licences.mkdir(parents=True, exist_ok=True)
            (licences / f"{debian}.txt").write_bytes(text.read_bytes())
        entry = package(debian or path.name, versionInfo=version, licenseDeclared=licence, packageFileName=name,
                        sourceInfo=source and f"Debian source package {source}",
                        comment="linked: shared; the file is in this package",
                        checksums=[{"algorithm": "SHA256", "checksumValue": sha256(path)}],
                        primaryPackagePurpose="LIBRARY",
                        externalRefs=debian and [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                                                  "referenceLocator": f"pkg:deb/debian/{debian}@{version}"}])
        entry["SPDXID"] = identifier(f"File-{name}")
        packages.append(entry)
        relations.append((identifier("Package-tutti"), "CONTAINS", entry["SPDXID"], "the file is in this package"))


def document(rows, version, bundled, root, sysroot, licences):
    own = package("tutti", versionInfo=version, licenseConcluded="MIT", licenseDeclared="MIT", copyrightText="Copyright The tutti authors",
                  primaryPackagePurpose="FRAMEWORK")
    packages, relations = [own], [("SPDXRef-DOCUMENT", "DESCRIBES", own["SPDXID"], "")]
    for row in rows:
        kind, says = LINKED[row["linked"]]
        entry = package(row["name"], versionInfo=row["version"], licenseDeclared=row["licence"],
                        comment=f"linked: {row['linked']}; {says}" + (f"; component {row['component']}" if row["component"] else "") +
                        (f"; Debian: {row['debian']}" if row["debian"] else ""))
        if all(entry["SPDXID"] != other["SPDXID"] for other in packages):
            packages.append(entry)
        ends = (own["SPDXID"], entry["SPDXID"])
        a, b = reversed(ends) if kind in REVERSED else ends
        relations.append((a, kind, b, says))
    if bundled:
        add_bundled(bundled, root or bundled, sysroot, licences, packages, relations)
    spdx = {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"tutti-{version}",
            "documentNamespace": "", "creationInfo": {}, "packages": packages,
            "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b} | ({"comment": says} if says else {})
                              for a, kind, b, says in relations]}
    used = {word for entry in packages for word in re.findall(r"LicenseRef-[A-Za-z0-9.-]+", entry["licenseDeclared"])}
    if used - OTHER.keys():
        fail("licence", "a licence of SPDX's list or of OTHER", ", ".join(sorted(used - OTHER.keys())))
    if used:
        spdx["hasExtractedLicensingInfos"] = [{"licenseId": name, "name": OTHER[name].split(",")[0], "extractedText": OTHER[name]} for name in sorted(used)]
    return spdx


def main():
    a = argparse.ArgumentParser(prog="bill_of_materials.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--dependencies", type=Path, required=True)
    a.add_argument("--version", required=True)
    a.add_argument("--out", type=Path, required=True)
    a.add_argument("--bundled", type=Path)
    a.add_argument("--root", type=Path)
    a.add_argument("--sysroot", type=Path, default=Path("/"))
    a.add_argument("--licences", type=Path)
    o = a.parse_args()
    if o.bundled and not o.bundled.is_dir():
        fail("--bundled", "a folder", o.bundled)
    if not o.sysroot.is_dir():
        fail("--sysroot", "a folder", o.sysroot)
    try:
        epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))
    except ValueError:
        fail("SOURCE_DATE_EPOCH", "seconds since 1970", os.environ["SOURCE_DATE_EPOCH"])
    spdx = document(read_table(o.dependencies), o.version, o.bundled, o.root, o.sysroot, o.licences)
    # The name of the document is unique for its content, as SPDX requires.
    content = json.dumps(spdx, sort_keys=True)
    spdx["documentNamespace"] = f"https://spdx.org/spdxdocs/tutti-{o.version}-{uuid.uuid5(uuid.NAMESPACE_URL, content)}"
    created = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc)
    spdx["creationInfo"] = {"created": created.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": [f"Tool: tutti-bill-of-materials-{o.version}"]}
    o.out.parent.mkdir(parents=True, exist_ok=True)
    o.out.write_text(json.dumps(spdx, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
