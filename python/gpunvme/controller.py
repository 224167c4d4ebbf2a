# SPDX-License-Identifier: BSD-3-Clause
"""NVMe controllers by their own commands, and software ones with faults."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable

from . import _lib
from ._lib import lib
from .buffers import view
from .errors import Error, argument, check, error
from .reports import ControllerInfo, Event, Health, Identity, LoggedError, Namespace, SimReport

if TYPE_CHECKING:
    from typing_extensions import Self

_open: weakref.WeakSet[Controller] = weakref.WeakSet()


class Controller:
    """An NVMe controller, brought up over a transport: "sim:size=1G", "nvme:0000:01:00.0".

    For tests of one's own code, and for what stores do not show: identify data, logs, features, any
    admin command. ``sim:`` is a drive in software, which can be told to fail:

        drive = gpunvme.Controller("sim:size=64M,fault=status=2/81:lba=100-107:read")
        drive.read(100 * 512, 512)        # StatusError: Unrecovered Read Error
        drive.add_fault("lose:io:nth=3")  # the third I/O command from here on never completes

    docs/SIM.md lists what a ``sim:`` URI and a fault may say. Timeouts are in seconds: ``timeout``
    of I/O commands, after which they are aborted, and if that does not help the controller is
    reset. ``recovery=False`` does not reset it. A context manager that closes it. Methods may be
    called from several threads, close() excepted.
    """

    def __init__(self, uri: str, *, timeout: float = 30.0, admin_timeout: float = 10.0,
                 recovery: bool = True) -> None:
        self.uri = uri
        self._handle = 0
        self._queue = 0
        self._lock = threading.Lock()
        options = _lib.CtrlOpts()
        lib.gpunvme_ctrl_opts_init(ctypes.byref(options))
        options.io_timeout_ms = max(1, round(timeout * 1000))
        options.admin_timeout_ms = max(1, round(admin_timeout * 1000))
        options.no_recovery = not recovery
        handle = ctypes.c_void_p()
        name = os.fsencode(uri)
        check(lib.gpunvme_ctrl_open_uri(name, ctypes.byref(options), ctypes.byref(handle)))
        self._handle = handle.value or 0
        self._pid = os.getpid()
        _open.add(self)

    def __repr__(self) -> str:
        return f"<gpunvme.Controller {self.uri!r}{'' if self._handle else ', closed'}>"

    def _now(self) -> int:
        if not self._handle:
            raise error(_lib.ERR_CLOSED, f"{self.uri} has been closed")
        if self._pid != os.getpid():
            raise error(_lib.ERR_UNSUPPORTED, f"{self.uri} belongs to the parent process")
        return self._handle

    def close(self) -> None:
        """Shuts the controller down and lets go of it."""
        handle, self._handle, self._queue = self._handle, 0, 0
        if handle and self._pid == os.getpid():
            _open.discard(self)
            check(lib.gpunvme_ctrl_close(handle))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", 0) and self._pid == os.getpid():
            lib.gpunvme_ctrl_close(self._handle)

    # -- What it is --

    def identify(self) -> Identity:
        """Identify Controller."""
        raw = ctypes.string_at(lib.gpunvme_ctrl_id(self._now()), 4096)
        head = _lib.IdCtrl.from_buffer_copy(raw)
        version = head.ver
        return Identity(
            vendor=head.vid,
            serial=_text(head.sn),
            model=_text(head.mn),
            firmware=_text(head.fr),
            version=f"{version >> 16}.{version >> 8 & 255}.{version & 255}",
            raw=raw,
        )

    def info(self) -> ControllerInfo:
        """Facts about it as it is in use."""
        info = _lib.CtrlInfo()
        lib.gpunvme_ctrl_get_info(self._now(), ctypes.byref(info))
        return ControllerInfo(
            page_size=info.page_size,
            max_entries=info.max_entries,
            max_io_queues=info.max_io_queues,
            max_transfer=None if info.max_transfer == 2**64 - 1 else info.max_transfer,
            sgl=info.sgl,
            shadow_doorbells=info.shadow_doorbells,
            interrupts=info.vectors,
            volatile_write_cache=info.volatile_write_cache,
            resets=info.resets,
        )

    def namespaces(self) -> list[Namespace]:
        """The active namespaces."""
        found: list[Namespace] = []
        while pointer := lib.gpunvme_ctrl_ns_at(self._now(), len(found)):
            ns = _lib.Ns.from_address(pointer)
            found.append(Namespace(ns.nsid, ns.block_size, ns.nblocks, ns.nbytes, ns.max_blocks,
                                   ns.readonly))
        return found

    # -- Bytes --

    def _namespace(self, nsid: int | None) -> int:
        ns = ctypes.c_void_p()
        if nsid is None:
            first: int | None = lib.gpunvme_ctrl_ns_at(self._now(), 0)
            if not first:
                raise error(_lib.ERR_NO_NAMESPACE, f"{self.uri} has no namespace")
            return first
        check(lib.gpunvme_ctrl_ns(self._now(), nsid, ctypes.byref(ns)))
        return ns.value or 0

    def _ioq(self) -> int:
        with self._lock:
            if not self._queue:
                queue = ctypes.c_void_p()
                check(lib.gpunvme_ioq_create(self._now(), 0, ctypes.byref(queue)))
                self._queue = queue.value or 0
            return self._queue

    def _with_memory(self, nbytes: int, use: Callable[[_lib.Buf], object]) -> None:
        """Calls ``use`` with host memory that the controller reaches."""
        buf = _lib.Buf()
        check(lib.gpunvme_ctrl_alloc(self._now(), nbytes, _lib.MEM_HOST, ctypes.byref(buf)))
        try:
            use(buf)
        finally:
            lib.gpunvme_ctrl_free(self._now(), ctypes.byref(buf))

    def read(self, offset: int, nbytes: int, nsid: int | None = None) -> bytes:
        """Reads ``nbytes`` bytes from byte ``offset`` of a namespace on (None: the first one)."""
        if offset < 0 or nbytes <= 0:
            raise argument(f"{nbytes} bytes from byte {offset} on")
        ns, queue, found = self._namespace(nsid), self._ioq(), b""

        def use(buf: _lib.Buf) -> None:
            nonlocal found
            check(lib.gpunvme_read(queue, ns, offset, nbytes, ctypes.byref(buf), 0))
            found = ctypes.string_at(buf.cpu, nbytes)

        self._with_memory(nbytes, use)
        return found

    def write(self, offset: int, data: Any, nsid: int | None = None, *, fua: bool = False) -> None:
        """Writes a buffer; ``fua``: it is on the medium when this returns."""
        if offset < 0:
            raise argument(f"byte {offset}")
        ns, queue, source = self._namespace(nsid), self._ioq(), view(data, False)

        def use(buf: _lib.Buf) -> None:
            check(lib.gpunvme_mem_copy(buf.cpu, _lib.MEM_HOST, source.ptr, source.mem,
                                       source.nbytes))
            check(lib.gpunvme_write(queue, ns, offset, source.nbytes, ctypes.byref(buf), 0,
                                    int(fua)))

        self._with_memory(source.nbytes, use)

    def flush(self, nsid: int | None = None) -> None:
        """What has been written is on the medium when it returns."""
        check(lib.gpunvme_flush(self._ioq(), self._namespace(nsid)))

    # -- Admin commands --

    def admin(self, opcode: int, *, nsid: int = 0, data: Any = None, nbytes: int = 0,
              cdw10: int = 0, cdw11: int = 0, cdw12: int = 0, cdw13: int = 0, cdw14: int = 0,
              cdw15: int = 0) -> tuple[int, bytes]:
        """Sends an admin command, with ``data`` or for ``nbytes`` bytes.

        Returns dword 0 of the completion and the bytes. Raises StatusError for any status but
        success.
        """
        if data is not None and nbytes:
            raise argument("a command takes data, or gives it")
        sqe = _lib.Sqe(opc=opcode, nsid=nsid, cdw10=cdw10, cdw11=cdw11, cdw12=cdw12, cdw13=cdw13,
                       cdw14=cdw14, cdw15=cdw15)
        found = None if data is None else view(data, False)
        room = ctypes.create_string_buffer(nbytes) if nbytes else None
        memory, size = (found.ptr, found.nbytes) if found else (room, nbytes)
        result = ctypes.c_uint32()
        check(lib.gpunvme_ctrl_admin(self._now(), ctypes.byref(sqe), memory, size,
                                     found is not None, ctypes.byref(result)))
        return result.value, room.raw if room else b""

    def log(self, page: int, nbytes: int, nsid: int = 0xFFFFFFFF, offset: int = 0) -> bytes:
        """Get Log Page: ``nbytes`` bytes of log ``page`` from byte ``offset`` on."""
        if nbytes <= 0 or offset < 0:
            raise argument(f"{nbytes} bytes of a log from byte {offset} on")
        room = ctypes.create_string_buffer(nbytes)
        check(lib.gpunvme_ctrl_get_log(self._now(), page, nsid, offset, room, nbytes))
        return room.raw

    def health(self) -> Health:
        """The SMART log."""
        log = _lib.SmartLog.from_buffer_copy(self.log(_lib.LOG_SMART, 512))
        return Health(
            critical_warning=log.critical_warning,
            temperature=log.temperature - 273,
            spare=log.avail_spare,
            percent_used=log.percent_used,
            bytes_read=_wide(log.data_units_read) * 512_000,
            bytes_written=_wide(log.data_units_written) * 512_000,
            power_cycles=_wide(log.power_cycles),
            power_on_hours=_wide(log.power_on_hours),
            unsafe_shutdowns=_wide(log.unsafe_shutdowns),
            media_errors=_wide(log.media_errors),
        )

    def logged_errors(self, n: int = 16) -> list[LoggedError]:
        """The newest entries of the error log, at most ``n``."""
        size = ctypes.sizeof(_lib.ErrorLogEntry)
        raw = self.log(_lib.LOG_ERROR, n * size)
        entries = [_lib.ErrorLogEntry.from_buffer_copy(raw, i * size) for i in range(n)]
        return [LoggedError(e.error_count, e.sqid, e.cid, e.status >> 1, e.lba, e.nsid)
                for e in entries if e.error_count]

    def feature(self, feature: int, nsid: int = 0) -> int:
        """Get Features: dword 0 of the completion."""
        value = ctypes.c_uint32()
        check(lib.gpunvme_ctrl_get_feature(self._now(), feature, nsid, ctypes.byref(value)))
        return value.value

    def set_feature(self, feature: int, value: int, nsid: int = 0) -> None:
        """Set Features: dword 11 of the command."""
        check(lib.gpunvme_ctrl_set_feature(self._now(), feature, nsid, value))

    def next_event(self) -> Event | None:
        """The next asynchronous event; None: there is none now."""
        event = _lib.Event()
        err = lib.gpunvme_ctrl_next_event(self._now(), ctypes.byref(event))
        if err == _lib.ERR_AGAIN:
            return None
        check(err)
        return Event(event.type, event.info, event.log_page)

    def check(self) -> None:
        """Looks after the controller: raises if it is gone, and resets it if it has failed."""
        check(lib.gpunvme_ctrl_check(self._now()))

    def reset(self) -> None:
        """Resets the controller and creates its queues again. Commands in flight are aborted."""
        check(lib.gpunvme_ctrl_reset(self._now()))

    # -- The software controller --

    def _sim(self) -> int:
        sim: int | None = lib.gpunvme_transport_sim(lib.gpunvme_ctrl_transport(self._now()))
        if not sim:
            raise error(_lib.ERR_UNSUPPORTED, f"{self.uri} is no software controller")
        return sim

    def add_fault(self, rule: str) -> None:
        """Adds a fault to a ``sim:`` controller: "status=2/81:read:p=0.1%" (docs/SIM.md)."""
        check(lib.gpunvme_sim_fault(self._sim(), rule.encode()))

    def clear_faults(self) -> None:
        """Takes all faults of a ``sim:`` controller away."""
        lib.gpunvme_sim_faults_clear(self._sim())

    def fail(self) -> None:
        """A ``sim:`` controller fails: it sets CSTS.CFS and stops."""
        lib.gpunvme_sim_fatal(self._sim())

    def unplug(self) -> None:
        """A ``sim:`` controller is gone, as if pulled out."""
        lib.gpunvme_sim_remove(self._sim())

    def power_cycle(self) -> None:
        """A ``sim:`` controller loses its power, and with it what is in its write cache."""
        lib.gpunvme_sim_power_cycle(self._sim())

    def report(self) -> SimReport:
        """What a ``sim:`` controller saw: commands, faults, violations of the specification."""
        report = _lib.SimReport()
        lib.gpunvme_sim_report(self._sim(), ctypes.byref(report))
        return SimReport(
            violations=report.nviolations,
            first_violation=report.first.decode(errors="replace"),
            warnings=report.nwarnings,
            first_warning=report.first_warning.decode(errors="replace"),
            admin_commands=report.commands[0],
            io_commands=report.commands[1],
            bytes_read=report.bytes_read,
            bytes_written=report.bytes_written,
            errors=report.errors,
            faults=report.faults,
        )


def _text(padded: Any) -> str:
    return bytes(padded).decode("ascii", errors="replace").rstrip(" \0")


def _wide(halves: Any) -> int:
    low, high = halves
    return int(low | high << 64)


@atexit.register
def _close_all() -> None:
    for controller in list(_open):
        try:
            controller.close()
        except Error:
            pass  # one that is gone
