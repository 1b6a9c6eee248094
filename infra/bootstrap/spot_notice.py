#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Waits for the notice that this Spot instance will be interrupted, writes it to a file, and ends.

    spot_notice.py [--poll SECONDS] FILE

`train_cifar10 --spot-notice FILE` waits for FILE: its worker then leaves the job, which continues. The file holds the
notice, {"action": "terminate", "time": "..."}; an older one is removed at the start. Asks the instance metadata service, by version 2
of its protocol, every 5 s; the notice comes two minutes before the end. Python 3.9.
"""
import argparse
import json
import os
import sys
import time
from pathlib import Path

from instance_metadata import Metadata


def say(text):
    print(f"spot_notice: {text}", file=sys.stderr, flush=True)


def notice(metadata):
    """Returns the notice, or `None` before it arrives."""
    text = metadata.get("spot/instance-action")
    if text is None:
        return None
    found = json.loads(text)
    if not isinstance(found, dict) or found.get("action") not in ("terminate", "stop", "hibernate"):
        raise ValueError(f"no notice: {str(found)[:200]}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--poll", type=float, default=5, help="seconds between two checks [5]")
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
    metadata = Metadata()
    told = ""
    while True:
        try:
            found = notice(metadata)
            told = ""
        except (OSError, ValueError) as e:
            found = None
            if str(e) != told:
                say(f"warning: {e}; asking again")
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
