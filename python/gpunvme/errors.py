# SPDX-License-Identifier: BSD-3-Clause
"""Exceptions: the errors of the C library, each also the built-in exception that fits it."""

from __future__ import annotations

import errno

from . import _lib


class Error(Exception):
    """Any error of gpunvme.

    ``code`` is the number (``gpunvme_err_t``), ``name`` its name ("GPUNVME_ERR_TIMEOUT"),
    ``detail`` what exactly went wrong, ``remedy`` what happened in general and what to do.
    Subclasses are also a built-in exception: ``except FileNotFoundError`` works as usual, with
    ``errno`` set where that is an OSError.
    """

    def __init__(self, code: int, name: str, detail: str, remedy: str) -> None:
        # Not OSError's: that takes the third argument for the name of a file.
        Exception.__init__(self, code, name, detail, remedy)
        self.code = code
        self.name = name
        self.detail = detail
        self.remedy = remedy
        if isinstance(self, OSError):
            OSError.__setattr__(self, "errno", _ERRNO.get(code, errno.EIO))
            OSError.__setattr__(self, "strerror", str(self))

    def __str__(self) -> str:
        text = f"{self.remedy} ({self.name})"
        return f"{self.detail}: {text}" if self.detail else text

    def __reduce__(self) -> tuple[type[Error], tuple[int, str, str, str]]:
        return type(self), (self.code, self.name, self.detail, self.remedy)


class ArgumentError(Error, ValueError):
    """An argument is wrong: a buffer, an offset, a URI."""


class RangeError(ArgumentError):
    """Beyond the end of the store."""


class ClosedError(Error, ValueError):
    """The store, controller or queue is closed."""


class OutOfMemoryError(Error, MemoryError):
    """There is not enough memory of the kind that was asked for."""


class NotFoundError(Error, FileNotFoundError):
    """There is no such file, device or namespace."""


class ExistsError(Error, FileExistsError):
    """The file is there already."""


class PermissionDeniedError(Error, PermissionError):
    """Not permitted: by the file's mode, or because it was not opened for writing."""


class DeadlineError(Error, TimeoutError):
    """A deadline passed. The transfer may still be in flight: see the detail."""


class DeviceError(Error, OSError):
    """The operating system, a controller, a drive or a GPU reported an error."""


class UnsupportedError(DeviceError):
    """This build, machine, GPU or store can't do it; the detail says why."""


class BusyError(DeviceError):
    """Something else uses it."""


class CanceledError(DeviceError):
    """The transfer was canceled before all of it was done."""


class StatusError(DeviceError):
    """A command ended with an NVMe status.

    ``status`` is the status field (15 bits), ``sct`` its type and ``sc`` its code; ``dnr`` says
    that a retry would fail again.
    """

    def __init__(self, code: int, name: str, detail: str, remedy: str) -> None:
        super().__init__(code, name, detail, remedy)
        self.status = -code - 0x8000
        self.sct = self.status >> 8 & 7
        self.sc = self.status & 0xFF
        self.dnr = bool(self.status & 0x4000)


class OpsError(Error):
    """Any error of ``gpunvme.ops``."""


class OpsArgumentError(OpsError, ValueError):
    """Operands that don't fit each other, the operator or the variant."""


_CLASSES: dict[int, type[Error]] = {
    _lib.ERR_INVALID: ArgumentError,
    _lib.ERR_NOMEM: OutOfMemoryError,
    _lib.ERR_RANGE: RangeError,
    _lib.ERR_ALIGN: ArgumentError,
    _lib.ERR_NOT_FOUND: NotFoundError,
    _lib.ERR_NO_NAMESPACE: NotFoundError,
    _lib.ERR_FORMAT: UnsupportedError,
    _lib.ERR_UNSUPPORTED: UnsupportedError,
    _lib.ERR_BUSY: BusyError,
    _lib.ERR_AGAIN: BusyError,
    _lib.ERR_TIMEOUT: DeadlineError,
    _lib.ERR_READONLY: PermissionDeniedError,
    _lib.ERR_IMAGE_SIZE: ArgumentError,
    _lib.ERR_URI: ArgumentError,
    _lib.ERR_URI_PARAM: ArgumentError,
    _lib.ERR_STALE: ArgumentError,
    _lib.ERR_NO_GPU: UnsupportedError,
    _lib.ERR_PERMISSION: PermissionDeniedError,
    _lib.ERR_CLOSED: ClosedError,
    _lib.ERR_CANCELED: CanceledError,
    _lib.ERR_EXISTS: ExistsError,
}

_ERRNO = {
    _lib.ERR_NOT_FOUND: errno.ENOENT,
    _lib.ERR_NO_NAMESPACE: errno.ENXIO,
    _lib.ERR_FORMAT: errno.ENOTSUP,
    _lib.ERR_UNSUPPORTED: errno.ENOTSUP,
    _lib.ERR_BUSY: errno.EBUSY,
    _lib.ERR_AGAIN: errno.EAGAIN,
    _lib.ERR_TIMEOUT: errno.ETIMEDOUT,
    _lib.ERR_REMOVED: errno.ENODEV,
    _lib.ERR_NOSPC: errno.ENOSPC,
    _lib.ERR_READONLY: errno.EROFS,
    _lib.ERR_INTERRUPTED: errno.EINTR,
    _lib.ERR_NO_GPU: errno.ENODEV,
    _lib.ERR_PROTOCOL: errno.EPROTO,
    _lib.ERR_PERMISSION: errno.EACCES,
    _lib.ERR_CANCELED: errno.ECANCELED,
    _lib.ERR_EXISTS: errno.EEXIST,
}

_OPS_ARGUMENTS = {
    _lib.OPS_ERR_INVALID,
    _lib.OPS_ERR_SHAPE,
    _lib.OPS_ERR_DTYPE,
    _lib.OPS_ERR_ALIGN,
    _lib.OPS_ERR_ALIAS,
    _lib.OPS_ERR_VARIANT,
    _lib.OPS_ERR_UNSUPPORTED,
    _lib.OPS_ERR_WORKSPACE,
}


def error(code: int, detail: str | None = None) -> Error:
    """The exception for an error code; without ``detail``, that of this thread's last failure."""
    lib = _lib.lib
    name = lib.gpunvme_err_name(code).decode()
    remedy = lib.gpunvme_err_text(code).decode()
    if detail is None:
        detail = lib.gpunvme_err_detail().decode(errors="replace")
    kind = StatusError if code <= -0x8000 else _CLASSES.get(code, DeviceError)
    return kind(code, name, detail, remedy)


def check(code: int) -> None:
    """Raises the exception for an error code; does nothing for 0."""
    if code:
        raise error(code)


def argument(detail: str) -> Error:
    """The exception for an argument that is refused before the library sees it."""
    return error(_lib.ERR_INVALID, detail)


def ops_error(code: int, detail: str | None = None) -> OpsError:
    """The exception for a status of the operators' library."""
    ops = _lib.ops()
    if detail is None:
        detail = ops.gpunvme_ops_detail().decode(errors="replace")
    kind = OpsArgumentError if code in _OPS_ARGUMENTS else OpsError
    return kind(
        code,
        ops.gpunvme_ops_status_name(code).decode(),
        detail,
        ops.gpunvme_ops_status_text(code).decode(),
    )
