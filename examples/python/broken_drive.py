#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""How to test your own code against drives that fail, without one: software drives with faults.

    broken_drive.py

`load` below is the code under test. It reads records, tries again what may succeed, and gives up on
what will not. docs/SIM.md lists the faults that there are.
"""

from __future__ import annotations

import gpunvme

RECORD = 4096


def load(store: gpunvme.Store, index: int, tries: int = 3) -> bytes | None:
    """A record, or None if the drive has lost it."""
    record = bytearray(RECORD)
    for attempt in range(tries):
        try:
            if store.pread(record, offset=index * RECORD) < RECORD:
                return None
            return bytes(record)
        except gpunvme.StatusError as error:
            print(f"    try {attempt + 1}: {error.name}")
            if error.dnr:  # the drive says that a retry would fail again
                return None
        except TimeoutError as error:
            print(f"    try {attempt + 1}: {error.name}")  # type: ignore[attr-defined]
    return None


def a_record_that_can_not_be_read() -> None:
    with gpunvme.open("sim:size=16M,fault=status=2/81/dnr:read:lba=8-15") as store:
        assert load(store, 0) == bytes(RECORD)
        assert load(store, 1) is None


def a_drive_that_fails_now_and_then() -> None:
    with gpunvme.open("sim:size=16M,fault=status=0/6:read:every=3") as store:
        assert all(load(store, i) == bytes(RECORD) for i in range(20))


def a_command_that_is_never_answered() -> None:
    # It is aborted after a third of the timeout, and if that does not help the drive is reset.
    with gpunvme.open("sim:size=16M,fault=lose:read:once?timeout=3s") as store:
        assert load(store, 0) == bytes(RECORD)


def a_drive_that_is_pulled_out() -> None:
    with gpunvme.open("sim:size=16M,fault=remove:read:nth=3") as store:
        assert load(store, 0) == load(store, 1) == bytes(RECORD)
        try:
            load(store, 2)
            raise AssertionError("it was read")
        except gpunvme.DeviceError as error:
            print(f"    {error.name}")


def a_power_loss() -> None:
    # What was flushed is kept; each write that was not is kept, lost or torn.
    with gpunvme.Controller("sim:size=16M,vwc=on,seed=7") as drive:
        drive.write(0, b"A" * RECORD)
        drive.flush()
        for i in range(1, 9):
            drive.write(i * RECORD, b"B" * RECORD)
        drive.power_cycle()
        drive.reset()
        assert drive.read(0, RECORD) == b"A" * RECORD
        kept = sum(drive.read(i * RECORD, RECORD) == b"B" * RECORD for i in range(1, 9))
        print(f"    {kept} of 8 writes that were not flushed are whole")


def main() -> None:
    for test in (a_record_that_can_not_be_read, a_drive_that_fails_now_and_then,
                 a_command_that_is_never_answered, a_drive_that_is_pulled_out, a_power_loss):
        print(test.__name__.replace("_", " "))
        test()


if __name__ == "__main__":
    main()
