#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests datasets/imagenet/prepare with archives of a few images, and tools/prepare-data for workers that join."""
import base64
import hashlib
import http.server
import io
import os
import shutil
import signal
import subprocess
import tarfile
import threading
import time
from pathlib import Path

from data_case import CLASSES, IMAGES, PROGRAM, ROOT, DataCase, main, make_folder, parse_example, read_tfrecord, unlike_others

PREPARE = ROOT / "datasets" / "imagenet" / "prepare"
JOIN = ROOT / "tools" / "prepare-data"
TRAIN, VALIDATION = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"


class Server(http.server.ThreadingHTTPServer):
    """Serves bytes by path, with ranges. If a test sets it, requires a name and a key, answers with a status, or breaks
    off."""

    def __init__(self):
        self.files, self.requests, self.login, self.status, self.cut = {}, [], None, None, None
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        s = self.server
        begin = int(self.headers.get("Range", "bytes=0-")[6:].rstrip("-"))
        s.requests.append((self.path, begin))
        body = s.files.get(self.path)
        status = s.status or (404 if body is None else 206 if begin else 200)
        if s.login and self.headers.get("Authorization") != "Basic " + base64.b64encode(s.login.encode()).decode():
            status = 401
        if status not in (200, 206):
            body, begin = b"<html>not the data</html>", 0
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) - begin))
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        self.end_headers()
        self.wfile.write(body[begin:begin + s.cut] if s.cut else body[begin:])


def tar_of(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


class ImageNet(DataCase):
    def setUp(self):
        super().setUp()
        make_folder(self.folder / "t", 25)
        self.inner = {f"{c}.tar": tar_of({p.name: p.read_bytes() for p in sorted((self.folder / "t" / c).iterdir())})
                      for c in CLASSES}
        self.train = tar_of(self.inner)
        image = (IMAGES / "422.jpg").read_bytes()
        self.validation = tar_of({f"ILSVRC2012_val_{k + 1:08}.JPEG": unlike_others(image, k) for k in range(6)})
        self.labels = self.folder / "labels.txt"
        self.labels.write_text("".join(f"{CLASSES[k % 5]}\n" for k in range(6)))
        self.out = self.folder / "out dir"
        self.archives = self.folder / "archives"

    def put_archives(self):
        self.archives.mkdir(exist_ok=True)
        (self.archives / TRAIN).write_bytes(self.train)
        (self.archives / VALIDATION).write_bytes(self.validation)

    def words(self, *options):
        sums = [word for name, data in (("train", self.train), ("val", self.validation))
                for word in (f"--md5-{name}", hashlib.md5(data).hexdigest())]
        return ["--out", self.out, "--archives", self.archives, "--labels", self.labels, *sums, "--tutti-data", PROGRAM,
                *options, "--", "--shards", "3", "--validation-shards", "2"]

    def prepare(self, *options, code=0, **environment):
        return self.run_tool(*self.words(*options), code=code, program=str(PREPARE),
                             env={**self.environment, **environment})

    def check_output(self):
        done = self.run_tool("verify", self.out, "--decode")
        self.assertIn("25 good records, 0 errors, 5 of 5 classes", done.stdout)
        self.assertIn("6 good records, 0 errors, 5 of 5 classes", done.stdout)
        labels = [parse_example(p)["image/class/label"] for f in sorted((self.out / "validation").glob("val*-of-*"))
                  for p in read_tfrecord(f)]
        self.assertEqual(labels, [1, 2, 3, 4, 5, 1])
        left = [p.name for p in (self.out / "raw_data").rglob(".unpack*")]
        self.assertEqual(left, [])

    def test_from_archives_once(self):
        self.put_archives()
        self.prepare()
        self.check_output()

        def changes():
            return {p: p.stat().st_mtime_ns for p in self.out.rglob("*") if p.is_file() and p.name != ".prepare.lock"}

        changed = changes()
        again = self.prepare()
        self.assertIn("exist already", again.stdout)
        self.assertNotIn("unpacking", again.stderr)
        self.assertEqual(changed, changes())
        # The script does not need the archives any more.
        shutil.rmtree(self.archives)
        self.prepare()

    def test_raw_images_of_another_source(self):
        raw = self.out / "raw_data"
        make_folder(raw / "train", 25)
        (raw / "validation").mkdir()
        with tarfile.open(fileobj=io.BytesIO(self.validation)) as tar:
            tar.extractall(raw / "validation")
        self.prepare()
        self.check_output()

    def test_interrupted_unpacking_continues(self):
        self.put_archives()
        # The archive of the third class is truncated.
        whole = self.train
        broken = dict(self.inner)
        broken["n03.tar"] = broken["n03.tar"][:700]
        self.train = tar_of(broken)
        self.put_archives()
        done = self.prepare(code=3)
        self.assertIn("n03", done.stderr)
        raw = self.out / "raw_data" / "train"
        self.assertFalse((raw / "n03").exists())
        self.train = whole
        self.put_archives()
        first = (raw / "n01").stat().st_ino
        self.prepare()
        self.assertEqual((raw / "n01").stat().st_ino, first)
        self.check_output()

    def test_killed_at_any_moment(self):
        self.put_archives()
        for k in range(12):
            process = subprocess.Popen([PREPARE, *self.words()], cwd=self.folder, env=self.environment,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
            time.sleep(0.03 * (k + 1))
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.prepare()
        self.check_output()
        self.prepare()

    def test_checksums_and_labels(self):
        self.put_archives()
        (self.archives / TRAIN).write_bytes(self.train[:-1024] + b"x" * 1024)
        done = self.prepare(code=3)
        self.assertIn(hashlib.md5(self.train).hexdigest(), done.stderr)
        self.assertFalse((self.out / "train").exists())
        self.put_archives()
        good = self.labels.read_text()
        for bad, part in ((good[4:], "6 lines"), (good.replace("n02", "n77"), "n77"), (good.replace("n02", "../x"), "../x")):
            self.labels.write_text(bad)
            self.assertIn(part, self.prepare(code=3).stderr)
        self.labels.write_text(good)
        self.prepare()
        self.check_output()

    def test_usage(self):
        for words in ([], ["--out"], ["--out", "x", "--bogus"], ["--out", "x", "--md5-train", "12"],
                      ["--out", "x", "--tutti-data", "/nowhere/tutti-data"]):
            self.assertEqual(self.run_tool(*words, code=2, program=str(PREPARE)).stdout, "")
        self.assertIn("image-net.org", self.run_tool("--help", program=str(PREPARE)).stdout)
        done = self.prepare(code=3)
        self.assertIn("--imagenet_username", done.stderr)

    def serve(self):
        if not shutil.which("curl"):
            self.skipTest("no curl (Debian: apt-get install curl)")
        server = Server()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        server.files = {f"/{TRAIN}": self.train, f"/{VALIDATION}": self.validation,
                        "/labels.txt": self.labels.read_bytes()}
        return server

    def test_download_with_name_and_key(self):
        server = self.serve()
        server.login = 'some one:k"e\\y $1'
        login = {"IMAGENET_USERNAME": "some one", "IMAGENET_ACCESS_KEY": 'k"e\\y $1'}
        server.cut = len(self.train) // 3  # each connection breaks after a third of the file
        self.prepare("--url", server.url, **login)
        self.check_output()
        begins = [begin for path, begin in server.requests if path == f"/{TRAIN}"]
        self.assertEqual(begins, sorted(begins))
        self.assertGreater(len(begins), 2)
        server.requests.clear()
        self.prepare("--url", server.url, **login)
        self.assertEqual(server.requests, [])

    def test_key_is_not_visible_to_other_users(self):
        server = self.serve()
        server.login = "me:s3cret-key"
        seen, stop = [], threading.Event()

        def look():
            while not stop.is_set():
                for pid in os.listdir("/proc"):
                    try:
                        if pid.isdigit():
                            seen.append(Path(f"/proc/{pid}/cmdline").read_bytes())
                    except OSError:
                        pass

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            done = self.prepare("--url", server.url, IMAGENET_USERNAME="me", IMAGENET_ACCESS_KEY="s3cret-key")
        finally:
            stop.set()
            watcher.join()
        self.check_output()
        self.assertTrue(any(b"curl" in s for s in seen))
        self.assertFalse(any(b"s3cret-key" in s for s in seen))
        self.assertNotIn("s3cret-key", done.stdout + done.stderr)
        for p in self.folder.rglob("*"):
            if p.is_file():
                self.assertNotIn(b"s3cret-key", p.read_bytes())

    def test_by_options(self):
        server = self.serve()
        server.login = "me:key"
        secret = ["--imagenet_username", "me", "--imagenet_access_key", "key"]
        # The script starts itself again without the variables.
        self.run_tool(*self.words("--url", server.url, *secret), program=str(PREPARE))
        self.check_output()
        # tutti-data starts the script next to it. The script finds the images there and starts tutti-data.
        server.requests.clear()
        shutil.rmtree(self.out / "train")
        tree = self.folder / "tree"
        (tree / "build" / "tools").mkdir(parents=True)
        shutil.copy(PROGRAM, tree / "build" / "tools" / "tutti-data")
        (tree / "datasets").symlink_to(ROOT / "datasets")
        words = ["preprocess", "--local_scratch_dir", self.out, *secret, "--shards", 3, "--validation-shards", 2]
        done = self.run_tool(*words, program=str(tree / "build" / "tools" / "tutti-data"))
        self.assertIn("25 images in 3 tfrecord shards", done.stdout)
        self.check_output()
        self.assertEqual(server.requests, [])
        (tree / "datasets").unlink()
        done = self.run_tool(*words, program=str(tree / "build" / "tools" / "tutti-data"), code=2)
        self.assertIn("datasets/imagenet/prepare", done.stderr)

    def test_wrong_key_and_other_refusals(self):
        server = self.serve()
        server.login = "me:key"
        done = self.prepare("--url", server.url, code=3, IMAGENET_USERNAME="me", IMAGENET_ACCESS_KEY="wrong")
        self.assertIn("401", done.stderr)
        server.login = None
        for status in (203, 403, 404, 500, 503):
            server.status = status
            done = self.prepare("--url", server.url, code=3, IMAGENET_USERNAME="me", IMAGENET_ACCESS_KEY="key")
            self.assertIn(str(status), done.stderr)
            self.assertFalse((self.archives / TRAIN).exists())
        server.status = None
        good, server.files[f"/{TRAIN}"] = self.train, self.train + b"x"
        done = self.prepare("--url", server.url, code=3, IMAGENET_USERNAME="me", IMAGENET_ACCESS_KEY="key")
        self.assertIn("wrong checksum", done.stderr)
        self.assertFalse((self.archives / TRAIN).exists())
        server.files[f"/{TRAIN}"] = good
        self.labels.unlink()
        self.prepare("--url", server.url, "--labels", f"{server.url}/labels.txt", IMAGENET_USERNAME="me",
                     IMAGENET_ACCESS_KEY="key")
        self.check_output()


class Join(DataCase):
    def test_cifar10_for_a_worker_that_joins(self):
        if not shutil.which("curl") and not shutil.which("wget"):
            self.skipTest("neither curl nor wget")
        source = self.folder / "source" / "cifar-10-batches-bin"
        source.mkdir(parents=True)
        for name in [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]:
            with open(source / f"{name}.bin", "wb") as out:
                out.truncate(30730000)
        subprocess.run(["tar", "-czf", "c.tar.gz", "-C", source.parent, source.name], cwd=self.folder, check=True)
        body = (self.folder / "c.tar.gz").read_bytes()
        server = Server()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        server.files["/c.tar.gz"] = body
        words = ["--url", f"{server.url}/c.tar.gz", "--sha256", hashlib.sha256(body).hexdigest()]
        work = self.folder / "work"
        work.mkdir()
        there = work / "data" / "cifar-10-batches-bin" / "test_batch.bin"
        for status in (203, 302, 404, 500):
            server.status = status
            self.run_tool(*words, program=str(JOIN), code=3, cwd=work)
            self.assertFalse(there.exists())
        server.status = None
        server.cut = len(body) // 2 - 7
        self.run_tool(*words, program=str(JOIN), cwd=work)
        self.assertTrue(there.exists())
        self.assertGreater(max(begin for _, begin in server.requests), 0)
        server.requests.clear()
        self.assertIn("exists already", self.run_tool(*words, program=str(JOIN), cwd=work).stderr)
        self.assertEqual(server.requests, [])
        # Runs the script from another folder, and through a link in a folder of programs.
        (self.folder / "bin").mkdir()
        (self.folder / "bin" / "prepare-data").symlink_to(JOIN)
        server.cut = None
        self.run_tool(*words, "--out", "elsewhere", program=str(self.folder / "bin" / "prepare-data"), cwd=work)
        self.assertTrue((work / "elsewhere" / "cifar-10-batches-bin" / "data_batch_3.bin").exists())
        # If the scripts of the data set are missing, it prints their names.
        alone = self.folder / "alone" / "prepare-data"
        alone.parent.mkdir()
        shutil.copy(JOIN, alone)
        self.assertIn("datasets/cifar10/prepare", self.run_tool(program=str(alone), code=2).stderr)
        self.run_tool("--bogus", program=str(JOIN), code=2, cwd=work)
        self.assertIn("./data", self.run_tool("--help", program=str(JOIN), cwd=work).stdout)


if __name__ == "__main__":
    main()
