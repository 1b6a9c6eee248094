#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fetches CIFAR-10 on a host that will join a job: an example of a script for PrepareDataScriptPath.

    prepare-data.py [--format binary|recordio] [--out DIR] [--url URL]

binary (the default): fetches DIR/cifar-10-batches-bin, for train_cifar10 --data DIR; URL is the archive. recordio: fetches
DIR/cifar10_train.rec and DIR/cifar10_val.rec, for train_cifar10 --data-train and --data-val; URL is their folder; the
project that published them has ended. DIR is ./data by default; on a host that is being prepared, the working folder is the
shared file system. Existing files are not fetched again, and a file appears only when it is complete. Exit codes: 0 once all files
exist, 3 after any answer except 200, 2 usage. Python 3.9.
"""
import argparse
import hashlib
import os
import shutil
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

RECORDIO = "http://data.mxnet.io/data/cifar10"
BINARY = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
BINARY_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
RECORDIO_MAGIC = (0xCED7230A).to_bytes(4, "little")
BATCHES = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
BATCH_BYTES = 10000 * 3073


class Failure(Exception):
    pass


def fetch(url, file):
    """Writes the content of the URL. Failure after any answer except 200, and if less data arrives than was
    announced."""
    print(f"prepare-data: fetching {url}", flush=True)
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, open(file, "wb") as out:
            if answer.status != 200:
                raise Failure(f"{url}: expected status 200, got {answer.status}")
            shutil.copyfileobj(answer, out, 1 << 20)
            announced = answer.headers.get("Content-Length")
    except urllib.error.HTTPError as e:
        raise Failure(f"{url}: expected status 200, got {e.code}") from None
    except (OSError, ValueError) as e:
        raise Failure(f"{url}: {e}") from None
    got = file.stat().st_size
    if announced is not None and got != int(announced):
        raise Failure(f"{url}: expected {announced} bytes, got {got}")


def prepare_recordio(out, base, work):
    for name in ("cifar10_train.rec", "cifar10_val.rec"):
        if (out / name).exists():
            print(f"prepare-data: {out / name} exists already", flush=True)
            continue
        fetch(f"{base.rstrip('/')}/{name}", work / name)
        with open(work / name, "rb") as file:
            if file.read(4) != RECORDIO_MAGIC:
                raise Failure(f"{base.rstrip('/')}/{name}: expected RecordIO, got another kind of file")
        os.rename(work / name, out / name)


def whole(folder):
    return all((folder / b).is_file() and (folder / b).stat().st_size == BATCH_BYTES for b in BATCHES)


def prepare_binary(out, url, work):
    folder = out / "cifar-10-batches-bin"
    if folder.exists():
        if not whole(folder):
            raise Failure(f"{folder}: expected the six files of CIFAR-10, got others; remove it to fetch it again")
        print(f"prepare-data: {folder} exists already", flush=True)
        return
    archive = work / "archive"
    fetch(url, archive)
    if url == BINARY:
        digest = hashlib.sha256()
        with open(archive, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
        if digest.hexdigest() != BINARY_SHA256:
            raise Failure(f"{url}: expected SHA-256 {BINARY_SHA256}, got {digest.hexdigest()}")
    made = work / folder.name
    made.mkdir()
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                # By name, so that no member of the archive can be written elsewhere.
                if member.isfile() and os.path.basename(member.name) in BATCHES:
                    with open(made / os.path.basename(member.name), "wb") as file:
                        shutil.copyfileobj(tar.extractfile(member), file, 1 << 20)
    except (tarfile.TarError, EOFError) as e:
        raise Failure(f"{url}: {e}") from None
    if not whole(made):
        raise Failure(f"{url}: expected the six files of CIFAR-10, got {', '.join(sorted(os.listdir(made))) or 'no file'}")
    try:
        os.rename(made, folder)
    except OSError:
        # Another host was faster.
        if not whole(folder):
            raise


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--format", choices=("binary", "recordio"), default="binary")
    parser.add_argument("--out", type=Path, default=Path("data"), help="the folder [data]")
    parser.add_argument("--url", help="address to fetch it from, instead of the original")
    options = parser.parse_args()
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=options.out, prefix=".fetch-") as work:
            if options.format == "binary":
                prepare_binary(options.out, options.url or BINARY, Path(work))
            else:
                prepare_recordio(options.out, options.url or RECORDIO, Path(work))
    except (Failure, OSError) as e:
        print(f"prepare-data: error: {e}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
