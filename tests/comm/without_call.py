#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""without_call.py refused|ignored CALL COMMAND...: runs the command with a filter of system calls. CALL, memfd_create or
madvise, is refused with EPERM, as in some containers; or ignored: it returns 0 without an effect, as in emulators of Linux.
Ends with 77 if this system takes no filter."""
import ctypes
import os
import platform
import struct
import sys

NUMBERS = {"memfd_create": {"x86_64": 319, "aarch64": 279}, "madvise": {"x86_64": 28, "aarch64": 233}}
EPERM = 1
WAYS = {"refused": EPERM, "ignored": 0}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL_WITH = 0x7FFF0000, 0x00050000  # FAIL_WITH | 0: the call returns 0


def main():
    way, call, *command = sys.argv[1:]
    number = NUMBERS[call].get(platform.machine())
    if number is None:
        sys.exit(77)
    program = [(LOAD, 0, 0, 0), (EQUAL, 0, 1, number), (RETURN, 0, 0, FAIL_WITH | WAYS[way]), (RETURN, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or libc.prctl(PR_SET_SECCOMP, FILTER, header, 0, 0) != 0:
        sys.exit(77)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
