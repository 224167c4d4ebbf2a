# SPDX-License-Identifier: BSD-3-Clause
"""Exceptions: what they are, say and carry."""

from __future__ import annotations

import errno
import pickle

import pytest

import gpunvme
from gpunvme import _lib, errors

CODES = [value for name, value in vars(_lib).items() if name.startswith("ERR_")]


@pytest.mark.parametrize("code", [*CODES, -0x8000 - 0x281])
def test_every_error_has_its_name_detail_and_remedy(code: int) -> None:
    error = errors.error(code, "what exactly")
    assert isinstance(error, gpunvme.Error)
    assert (error.code, error.detail) == (code, "what exactly")
    assert error.name.startswith(("GPUNVME_ERR_", "GPUNVME_SC_"))
    assert error.remedy and str(error) == f"what exactly: {error.remedy} ({error.name})"
    if isinstance(error, OSError):
        assert error.errno in errno.errorcode and error.strerror


@pytest.mark.parametrize(("code", "kind", "number"), [
    (_lib.ERR_INVALID, ValueError, None),
    (_lib.ERR_NOMEM, MemoryError, None),
    (_lib.ERR_NOT_FOUND, FileNotFoundError, errno.ENOENT),
    (_lib.ERR_EXISTS, FileExistsError, errno.EEXIST),
    (_lib.ERR_PERMISSION, PermissionError, errno.EACCES),
    (_lib.ERR_TIMEOUT, TimeoutError, errno.ETIMEDOUT),
    (_lib.ERR_NOSPC, OSError, errno.ENOSPC),
    (_lib.ERR_CLOSED, ValueError, None),
    (-0x8000 - 0x281, OSError, errno.EIO),
])
def test_an_error_is_the_built_in_one_too(code: int, kind: type[Exception],
                                          number: int | None) -> None:
    error = errors.error(code, "")
    assert isinstance(error, kind)
    if number is not None:
        assert isinstance(error, OSError) and error.errno == number


def test_a_status_is_taken_apart() -> None:
    error = errors.error(-0x8000 - 0x4281, "")
    assert isinstance(error, gpunvme.StatusError)
    assert (error.status, error.sct, error.sc, error.dnr) == (0x4281, 2, 0x81, True)


@pytest.mark.parametrize("code", [_lib.ERR_TIMEOUT, _lib.ERR_INVALID, -0x8000 - 0x281])
def test_an_error_is_pickled_whole(code: int) -> None:
    error = errors.error(code, "detail")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and again.args == error.args and str(again) == str(error)


def test_an_error_of_open_names_the_file() -> None:
    with pytest.raises(FileNotFoundError) as raised:
        gpunvme.open("/nonexistent/file")
    assert raised.value.filename == "/nonexistent/file"


@pytest.mark.parametrize("code", CODES)
def test_an_error_shows_all_of_itself(code: int) -> None:
    error = errors.error(code, "what exactly")
    assert error.args == (code, error.name, "what exactly", error.remedy)
    assert getattr(error, "filename", None) is None
