#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""skipped.py CTEST.XML: lists the skipped tests and the reason that each of them printed."""
import sys
import xml.etree.ElementTree as ElementTree

skipped = [case for case in ElementTree.parse(sys.argv[1]).iter("testcase") if case.get("status") == "notrun"]
print(f"{len(skipped)} skipped")
for case in skipped:
    lines = (case.findtext("system-out") or "").splitlines()
    reasons = [line[len("SKIP: "):] for line in lines if line.startswith("SKIP: ")]
    print(f"  {case.get('name')}: {'; '.join(reasons) or 'no reason given'}")
