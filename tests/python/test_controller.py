# SPDX-License-Identifier: BSD-3-Clause
"""Controllers by their own commands, and broken drives."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

import gpunvme


@pytest.fixture
def drive() -> Iterator[gpunvme.Controller]:
    with gpunvme.Controller("sim:size=64M,vwc=on") as opened:
        yield opened
        assert opened.report().violations == 0, opened.report().first_violation


def test_it_says_what_it_is(drive: gpunvme.Controller) -> None:
    identity = drive.identify()
    assert identity.model == "gpunvme sim unlimited"
    assert identity.version == "1.4.0" and len(identity.raw) == 4096
    info = drive.info()
    assert info.volatile_write_cache and info.page_size == 4096 and info.resets == 0
    (namespace,) = drive.namespaces()
    assert (namespace.nsid, namespace.nbytes, namespace.block_size) == (1, 64 << 20, 512)


def test_bytes_are_read_as_they_were_written(drive: gpunvme.Controller) -> None:
    data = np.random.default_rng(3).bytes(300_001)
    drive.write(12345, data)
    drive.write(5, np.arange(10, dtype=np.uint16), fua=True)
    drive.flush()
    assert drive.read(12345, len(data)) == data
    assert np.frombuffer(drive.read(5, 20, nsid=1), np.uint16).tolist() == list(range(10))


def test_admin_commands_pass(drive: gpunvme.Controller) -> None:
    _, identity = drive.admin(0x06, nbytes=4096, cdw10=1)  # Identify Controller
    assert identity == drive.identify().raw
    result, _ = drive.admin(0x0A, cdw10=0x06)  # Get Features, Volatile Write Cache
    assert result == drive.feature(0x06) == 1
    drive.set_feature(0x06, 0)
    assert drive.feature(0x06) == 0
    with pytest.raises(gpunvme.StatusError, match="OPCODE"):
        drive.admin(0xC1)
    with pytest.raises(gpunvme.ArgumentError):
        drive.admin(0x06, data=b"x", nbytes=1)


def test_faults_reach_the_caller_and_the_logs(drive: gpunvme.Controller) -> None:
    drive.add_fault("status=2/81:lba=100-107:read")
    with pytest.raises(gpunvme.StatusError) as raised:
        drive.read(100 * 512, 512)
    assert (raised.value.sct, raised.value.sc) == (2, 0x81)
    (logged,) = drive.logged_errors()
    assert (logged.lba, logged.nsid, logged.status & 0x7FF) == (100, 1, 0x281)
    assert drive.health().media_errors == 1
    assert (drive.report().faults, drive.report().errors) == (1, 1)
    drive.clear_faults()
    assert drive.read(100 * 512, 512) == bytes(512)


def test_a_command_that_is_lost_times_out_and_the_controller_recovers() -> None:
    with gpunvme.Controller("sim:size=1M", timeout=0.2) as drive:
        drive.write(0, b"before")
        drive.add_fault("lose:read:once")
        with pytest.raises(TimeoutError):
            drive.read(0, 6)
        assert drive.read(0, 6) == b"before"
        assert drive.info().resets == 1


def test_a_controller_that_fails_is_reset(drive: gpunvme.Controller) -> None:
    drive.fail()
    drive.check()
    assert drive.info().resets == 1
    drive.reset()
    assert drive.info().resets == 2 and len(drive.read(0, 512)) == 512


def test_a_power_loss_loses_at_most_what_was_not_flushed(drive: gpunvme.Controller) -> None:
    drive.write(0, b"flushed" * 100)
    drive.flush()
    drive.power_cycle()
    drive.reset()
    assert drive.read(0, 700) == b"flushed" * 100


def test_a_drive_that_is_gone_says_so() -> None:
    drive = gpunvme.Controller("sim:size=1M")
    drive.unplug()
    with pytest.raises(OSError, match="REMOVED"):
        drive.read(0, 512)
    try:
        drive.close()
    except gpunvme.Error:
        pass  # it can't be shut down any more


def test_bad_arguments_are_refused(drive: gpunvme.Controller) -> None:
    for use in (lambda: drive.read(-1, 1), lambda: drive.read(0, 0), lambda: drive.write(0, b""),
                lambda: drive.log(2, 0), lambda: drive.read((64 << 20) - 1, 2),
                lambda: drive.add_fault("brake=1"), lambda: gpunvme.Controller("sim:sise=1G")):
        with pytest.raises(ValueError):
            use()
    with pytest.raises(FileNotFoundError):
        drive.read(0, 1, nsid=7)


def test_a_closed_controller_says_so() -> None:
    drive = gpunvme.Controller("sim:size=1M")
    drive.close()
    drive.close()
    with pytest.raises(gpunvme.ClosedError):
        drive.read(0, 512)
    gpunvme.Controller("sim:size=1M")
    gc.collect()


def test_no_event_is_none(drive: gpunvme.Controller) -> None:
    assert drive.next_event() is None
