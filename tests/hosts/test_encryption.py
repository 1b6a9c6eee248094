#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# waits
"""Tests --encrypt on two hosts with a network of their own: a recording of the network contains the bytes of gradients
without encryption, and does not with it. A host that differs is refused."""
import contextlib
import re
import socket
import subprocess
import sys
import threading

from hosts_case import BUILD, HostsCase, main

GLOO_RANK = str(BUILD / "tests" / "hosts" / "gloo_rank")
GRADIENT = b"gradient of conv1.weight"
ALL_PROTOCOLS = 3  # ETH_P_ALL


class Recording:
    """Records all frames of a network device, from the beginning of the block to its end."""

    def __init__(self, device):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
        self.socket.bind((device, 0))
        self.socket.settimeout(0.05)
        self.frames = []
        self.ending = threading.Event()

    def __enter__(self):
        self.thread = threading.Thread(target=self.record)
        self.thread.start()
        return self

    def record(self):
        while True:
            with contextlib.suppress(TimeoutError):
                self.frames.append(self.socket.recv(1 << 17))
                continue
            if self.ending.is_set():
                return

    def __exit__(self, *_):
        self.ending.set()
        self.thread.join()
        self.socket.close()
        self.bytes = b"\n".join(self.frames)


class Encryption(HostsCase):
    def setUp(self):
        super().setUp()
        for name in ("GLOO_SOCKET_IFNAME", "TUTTI_ENCRYPT"):
            self.environment.pop(name, None)

    def record(self, *options):
        """Runs two ranks on two hosts. Returns what the first one prints, and the frames of its host."""
        with Recording(self.cluster._veth(0)) as recording:
            done = self.launch("-n", 2, "-H", self.cluster.hosts_file(1), *options, GLOO_RANK)
        return done.out, recording.bytes

    def test_gradients_are_on_the_wire_only_without_encryption(self):
        out, frames = self.record("--encrypt", "off")
        self.assertNotIn("encrypted", out)
        self.assertIn(GRADIENT * 10, frames)
        for options in ((), ("--encrypt", "auto"), ("--encrypt", "on")):
            out, frames = self.record(*options)
            self.assertIn("gloo, encrypted by TLS 1.3", out, options)
            self.assertGreater(len(frames), 240_000)  # the sums of the other host are there
            self.assertNotIn(GRADIENT, frames, options)
            self.assertNotIn(GRADIENT[:8], frames, options)

    def test_within_one_host_nothing_is_encrypted(self):
        done = self.launch("-n", 2, "--encrypt", "on", GLOO_RANK)
        self.assertIn("gloo, shared memory", done.out)
        self.assertNotIn("encrypted", done.out)

    def test_a_rank_that_differs_is_refused(self):
        command = f'if [ "$TUTTI_RANK" = 1 ]; then TUTTI_ENCRYPT=off; export TUTTI_ENCRYPT; fi; exec {GLOO_RANK}'
        with Recording(self.cluster._veth(0)) as recording:
            done = self.launch("-n", 2, "-H", self.cluster.hosts_file(1), "--encrypt", "on", "sh", "-c", command, code=2)
        self.assertRegex(done.err, r"worker [01] on \S+\] expected encryption between hosts (TLS 1.3|off)")
        self.assertNotIn(GRADIENT[:8], recording.bytes)

    def test_invalid_words(self):
        done = self.launch("-n", 2, "--encrypt", "maybe", GLOO_RANK, code=2)
        self.assertRegex(self.message(done), r"\[--encrypt\] expected .*auto.*on.*off.* got 'maybe'")
        done = self.launch("-n", 2, "--env", "TUTTI_ENCRYPT=maybe", GLOO_RANK, code=2)
        self.assertIn("[environment TUTTI_ENCRYPT] expected auto, on or off, got 'maybe'", done.err)


if __name__ == "__main__":
    cache = (BUILD / "CMakeCache.txt").read_text()
    for library, package in (("GLOO", "libgloo-dev"), ("OPENSSL", "libssl-dev")):
        if not re.search(rf"^TUTTI_BUILT_{library}:INTERNAL=.", cache, re.M):
            print(f"SKIP: a build without {library} (Debian: {package})")
            sys.exit(77)
    if not GLOO_RANK or subprocess.run(["test", "-x", GLOO_RANK], check=False).returncode != 0:
        sys.exit(f"{GLOO_RANK} has not been built")
    main(2)
