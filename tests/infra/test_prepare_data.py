#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests prepare-data.py, which downloads the data for the examples of a stack."""
import io
import subprocess
import sys
import tarfile
import unittest

from cloud import BOOTSTRAP, CloudCase


class PrepareData(CloudCase):
    def prepare(self, *arguments):
        return subprocess.run([sys.executable, BOOTSTRAP / "prepare-data.py", *map(str, arguments)], cwd=self.efs, text=True, capture_output=True,
                              timeout=300)

    def test_record_files(self):
        files, url = self.cloud.web.files, f"{self.cloud.web.url}/files/rec"
        record = setup_record = (0xCED7230A).to_bytes(4, "little") + bytes(12)
        files["rec/cifar10_train.rec"] = (200, record)
        files["rec/cifar10_val.rec"] = (404, b"")
        done = self.prepare("--format", "recordio", "--url", url)
        self.assertEqual(done.returncode, 3, done)
        self.assertIn("cifar10_val.rec: expected status 200, got 404", done.stderr)
        for status in (204, 206, 500):
            files["rec/cifar10_val.rec"] = (status, record)
            self.assertEqual(self.prepare("--format", "recordio", "--url", url).returncode, 3)
        files["rec/cifar10_val.rec"] = (200, b"<html>")
        self.assertIn("another kind of file", self.prepare("--format", "recordio", "--url", url).stderr)
        files["rec/cifar10_val.rec"] = (200, setup_record)
        self.assertEqual(self.prepare("--format", "recordio", "--url", url).returncode, 0)
        files.clear()
        self.assertEqual(self.prepare("--format", "recordio", "--url", url).returncode, 0)  # all files exist
        self.assertEqual(sorted(p.name for p in (self.efs / "data").iterdir()), ["cifar10_train.rec", "cifar10_val.rec"])

    def test_binary_files(self):
        files, url = self.cloud.web.files, f"{self.cloud.web.url}/files/cifar.tar.gz"
        names = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]

        def archive(members, size=30730000):
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
                for name in members:
                    info = tarfile.TarInfo(name)
                    info.size = size
                    tar.addfile(info, io.BytesIO(bytes(size)))
            return buffer.getvalue()
        folder = self.efs / "out/cifar-10-batches-bin"
        good = archive([f"cifar-10-batches-bin/{n}" for n in names] + ["../../evil.bin", "/evil.bin"])
        for bad in (b"no archive", good[:len(good) // 2], archive(names, 10)):
            files["cifar.tar.gz"] = (200, bad)
            done = self.prepare("--out", "out", "--url", url)
            self.assertEqual(done.returncode, 3, done)
            self.assertFalse(folder.exists())
        files["cifar.tar.gz"] = (200, good)
        for _ in range(2):
            done = self.prepare("--out", "out", "--url", url)
            self.assertEqual(done.returncode, 0, done)
            self.assertEqual(sorted(p.name for p in folder.iterdir()), sorted(names))
            files.clear()
        self.assertEqual([p.name for p in (self.efs / "out").iterdir()], ["cifar-10-batches-bin"])
        self.assertEqual([p.name for p in self.efs.iterdir()], ["out"])
        (folder / "test_batch.bin").write_bytes(b"")
        self.assertEqual(self.prepare("--out", "out").returncode, 3)
        self.assertEqual(self.prepare("--format", "tfrecord").returncode, 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
