#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Waits for the notice that this Spot instance is taken away, writes it to a file, and ends.

    spot_notice.py [--poll SECONDS] FILE

FILE is what `train_cifar10 --spot-notice FILE` waits for: its worker then leaves the job, which goes on. The file holds the
notice, {"action": "terminate", "time": "..."}; an older one is removed at the start. Asks the instance metadata service, by version 2
of its protocol, every 5 s; the notice comes two minutes before the end. Python 3.9.
"""
import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path


def say(text):
    print(f"spot_notice: {text}", file=sys.stderr, flush=True)


class Notice:
    def __init__(self, base):
        self.base = base.rstrip("/")
        self.open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        self.token, self.renew = None, 0.0

    def look(self):
        """The notice; None as long as there is none."""
        if self.token is None or time.monotonic() >= self.renew:
            ask = urllib.request.Request(f"{self.base}/latest/api/token", method="PUT",
                                         headers={"X-aws-ec2-metadata-token-ttl-seconds": "21600"})
            with self.open(ask, timeout=5) as answer:
                self.token = answer.read().decode()
            self.renew = time.monotonic() + 10800
        ask = urllib.request.Request(f"{self.base}/latest/meta-data/spot/instance-action",
                                     headers={"X-aws-ec2-metadata-token": self.token})
        try:
            with self.open(ask, timeout=5) as answer:
                notice = json.loads(answer.read())
        except urllib.error.HTTPError as e:
            if e.code == 401:
                self.token = None
            if e.code in (401, 404):
                return None
            raise
        if not isinstance(notice, dict) or notice.get("action") not in ("terminate", "stop", "hibernate"):
            raise ValueError(f"no notice: {str(notice)[:200]}")
        return notice


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--poll", type=float, default=5, help="seconds between two looks [5]")
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    if not 0 < options.poll <= 60:
        parser.error("--poll: expected more than 0 and at most 60 seconds")
    try:
        options.file.unlink(missing_ok=True)
        options.file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        say(f"error: {options.file}: {e.strerror}")
        return 2
    notice = Notice(os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254")
    told = ""
    while True:
        try:
            found = notice.look()
            told = ""
        except (OSError, ValueError) as e:
            found = None
            if str(e) != told:
                say(f"warning: {e}; it is asked again")
                told = str(e)
        if found:
            aside = options.file.with_name(f".{options.file.name}.{os.getpid()}")
            aside.write_text(json.dumps(found) + "\n")
            os.rename(aside, options.file)
            say(f"this instance ends: {found['action']} at {found.get('time', 'an unknown time')}")
            return 0
        time.sleep(options.poll)


if __name__ == "__main__":
    sys.exit(main())
