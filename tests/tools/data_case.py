# SPDX-License-Identifier: MIT
"""Base class for tests of tutti-data, with independent readers of the three formats, and sets of images."""
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("TUTTI_SOURCE_DIR", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("TUTTI_BUILD_DIR", ROOT / "build"))
PROGRAM = str(BUILD / "tools" / "tutti-data")
IMAGES = ROOT / "tests" / "data" / "fixtures" / "images"
CLASSES = ["n01", "n02", "n03", "n04", "n05"]
# The files of a finished set, without index files of readers and without the lock.
FORMS = {"packed": "train-{:05}-of-{:05}.tutti", "tfrecord": "train-{:05}-of-{:05}", "recordio": "train_{}.rec"}


def crc32c(data, table=[]):
    if not table:
        for b in range(256):
            for _ in range(8):
                b = (b >> 1) ^ (0x82F63B78 if b & 1 else 0)
            table.append(b)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def varint(v):
    out = b""
    while v >= 128:
        out += bytes([v & 127 | 128])
        v >>= 7
    return out + bytes([v])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(features):
    """Returns a serialized tf.train.Example. Values are bytes, int or lists of floats."""
    entries = b""
    for name, value in features.items():
        if isinstance(value, bytes):
            feature = field(1, field(1, value))
        elif isinstance(value, int):
            feature = field(3, field(1, varint(value)))
        else:
            feature = field(2, field(1, struct.pack(f"<{len(value)}f", *value)))
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)


def write_tfrecord(path, payloads):
    with open(path, "wb") as out:
        for p in payloads:
            length = struct.pack("<Q", len(p))
            out.write(length + struct.pack("<I", masked(length)) + p + struct.pack("<I", masked(p)))


def fields(data):
    """Yields (number, value) for each field of a protobuf message. The value is bytes or int."""
    at = 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            yield tag >> 3, number()
        else:
            assert tag & 7 == 2, tag
            length = number()
            yield tag >> 3, data[at:at + length]
            at += length


def parse_example(payload):
    features = {}
    for _, entries in fields(payload):
        for _, entry in fields(entries):
            pair = dict(fields(entry))
            (kind, values), = fields(pair[2])
            value = list(fields(values))[0][1]
            if kind == 3 and isinstance(value, bytes):  # packed
                value = sum((b & 127) << (7 * i) for i, b in enumerate(value))
            if kind == 2:
                value = [v for v, in struct.iter_unpack("<f", value)]
            features[pair[1].decode()] = value
    return features


def read_tfrecord(path):
    """Returns the payloads of the records. Does not check the checksums, which tutti-data's own tests do."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        length, = struct.unpack_from("<Q", data, at)
        yield data[at + 12:at + 12 + length]
        at += 16 + length


def read_packed(path):
    data = path.read_bytes()
    assert data[:8] == b"tuttipak" and data[-8:] == b"tuttiend"
    records, index = struct.unpack_from("<QQ", data, len(data) - 32)
    for r in range(records):
        offset, length, label, crc = struct.unpack_from("<QIiI", data, index + 20 * r)
        yield label, data[offset:offset + length]


def read_recordio(path):
    data, at = path.read_bytes(), 0
    while at < len(data):
        body = b""
        while True:
            magic, word = struct.unpack_from("<II", data, at)
            assert magic == 0xCED7230A
            flag, length = word >> 29, word & 0x1FFFFFFF
            body += (b"\x0a\x23\xd7\xce" if flag in (2, 3) else b"") + data[at + 8:at + 8 + length]
            at += 8 + (length + 3) // 4 * 4
            if flag in (0, 3):
                break
        yield int(struct.unpack_from("<f", body, 4)[0]), body[24:]


def records(folder, prefix="train"):
    """Returns (label from 0, image) for each image of a set, in the order of its files."""
    out = []
    for path in sorted(folder.glob(f"{prefix}*"), key=lambda p: (len(p.name), p.name)):
        if path.name.endswith(".tutti"):
            out += read_packed(path)
        elif path.suffix == ".rec":
            out += read_recordio(path)
        elif "-of-" in path.name:
            for p in read_tfrecord(path):
                e = parse_example(p)
                out.append((e["image/class/label"] - 1, e["image/encoded"]))
    return out


def shape(jpeg):
    """Returns (width, height, components) of a JPEG."""
    at = 2
    assert jpeg[:2] == b"\xff\xd8"
    while True:
        marker, length = jpeg[at + 1], struct.unpack_from(">H", jpeg, at + 2)[0]
        if marker in (0xC0, 0xC1, 0xC2):
            height, width, components = struct.unpack_from(">HHB", jpeg, at + 5)
            return width, height, components
        at += 2 + length


def unlike_others(jpeg, number):
    """Returns the same image with other bytes: a comment follows the start marker."""
    text = f"image {number}".encode()
    return jpeg[:2] + b"\xff\xfe" + struct.pack(">H", len(text) + 2) + text + jpeg[2:]


def make_folder(folder, count, names=("420.jpg", "grey.jpg", "progressive.jpg", "422.jpg")):
    """Makes `count` images with labels from CLASSES. Returns {(label, image)}."""
    made = set()
    sources = [(IMAGES / n).read_bytes() for n in names]
    for number in range(count):
        label = number % len(CLASSES)
        image = unlike_others(sources[number % len(sources)], number)
        path = folder / CLASSES[label] / f"{CLASSES[label]}_{number}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
        made.add((label, image))
    return made


def real_images(folder):
    """Unpacks imagenet-sample.tar into a folder. Returns {(label, image)}, or an empty set without the archive."""
    places = [Path(os.environ.get("TUTTI_DATA") or ROOT), ROOT.parent / "shared" / "data"]
    for place in places:
        if (place / "imagenet-sample.tar").is_file():
            with tarfile.open(place / "imagenet-sample.tar") as tar:
                tar.extractall(folder)
            (folder / "imagenet-sample").rename(folder / "train")
            classes = sorted(p.name for p in (folder / "train").iterdir())
            return {(k, p.read_bytes()) for k, c in enumerate(classes) for p in (folder / "train" / c).iterdir()}
    return set()


class DataCase(unittest.TestCase):
    def setUp(self):
        temp = tempfile.TemporaryDirectory(prefix="tutti-data-")
        self.addCleanup(temp.cleanup)
        self.folder = Path(temp.name)
        # Index files must not be written outside the test's folder.
        self.environment = dict(os.environ, XDG_CACHE_HOME=str(self.folder / "cache"))

    def run_tool(self, *words, code=0, program=PROGRAM, **more):
        """Runs the tool in the test's folder. Checks its exit code, and the form of its error if it fails."""
        done = subprocess.run([program, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=300, **{"cwd": self.folder, "env": self.environment, **more})
        self.assertEqual(done.returncode, code, f"{words}\nstdout:\n{done.stdout}\nstderr:\n{done.stderr}")
        if code and program == PROGRAM:
            self.assertRegex(done.stderr.splitlines()[-1], r"^tutti-data: \[.+\] expected .*, got .*\.$")
        return done

    def bits(self, folder):
        """Returns {name: bytes} of all output files."""
        return {p.name: p.read_bytes() for p in sorted((self.folder / folder).iterdir())}


def main():
    if not os.access(PROGRAM, os.X_OK):
        print(f"{PROGRAM} is not built")
        sys.exit(1)
    unittest.main(verbosity=2)
