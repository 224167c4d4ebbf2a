#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Adds the licence texts of what a wheel bundles to its dist-info/licenses, in place.

    scripts/wheel-licenses.py WHEEL [NAME=FILE…]

Bundled are the libraries that auditwheel put into *.libs; their texts are those of the packages of
the system (Debian's, or an RPM's) that they were copied from. NAME=FILE adds others: the package's
own, and what is linked statically. Fails if there is a library without a text.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

FOLDERS = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"]


def original(name: str) -> str:
    """The name of a bundled library before auditwheel added a part of its hash."""
    return re.sub(r"-[0-9a-f]{8}(?=\.so)", "", name)


def places(name: str) -> list[Path]:
    """Where on this system a library is, as packages may have it."""
    found = [path for folder in FOLDERS for path in
             (*Path(folder).glob(name), *Path(folder).glob(f"*-linux-gnu/{name}"))]
    return list(dict.fromkeys([*found, *(path.resolve() for path in found)]))


def output(*command: str) -> str:
    """What a command prints; "" if it fails or is not there."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def texts_of_owner(path: Path) -> tuple[str, list[Path]]:
    """The package that a file belongs to, and its licence texts."""
    if debian := output("dpkg-query", "-S", str(path)):
        package = debian.split(":")[0]
        return package, [Path("/usr/share/doc", package, "copyright")]
    rpm = output("rpm", "-qf", "--qf", "%{NAME}", str(path))
    return rpm, [Path(line) for line in output("rpm", "-q", "--licensefiles", rpm).splitlines()]


def common(texts: Iterable[bytes]) -> dict[str, bytes]:
    """The licences that Debian's texts only name the files of."""
    found = {Path(path.decode()) for text in texts
             for path in re.findall(rb"/usr/share/common-licenses/[\w.+-]*\w", text)}
    return {f"common/{path.name}": path.read_bytes() for path in found if path.is_file()}


def texts_of(library: str) -> dict[str, bytes]:
    """By name in the wheel. Empty if no package has them."""
    for path in places(original(library)):
        package, files = texts_of_owner(path)
        found = {f"{package}/{file.name}": file.read_bytes() for file in files if file.is_file()}
        if package and found:
            return found | common(found.values())
    return {}


def add(wheel: Path, given: dict[str, bytes]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {info: archive.read(info) for info in archive.infolist()}
    record = next(info for info in files if re.fullmatch(r"[^/]+\.dist-info/RECORD", info.filename))
    libraries = [Path(info.filename).name for info in files
                 if re.match(r"[^/]+\.libs/.*\.so", info.filename)]
    texts = dict(given)
    for library in libraries:
        found = texts_of(library)
        if not found:
            sys.exit(f"wheel-licenses.py: no licence text for {library}: give it by NAME=FILE, or "
                     "install its package here")
        texts.update(found)
    folder = record.filename.removesuffix("RECORD") + "licenses/"
    rows = io.StringIO(files.pop(record).decode())
    replaced = {record.filename, *(folder + name for name in texts)}
    lines = [row for row in csv.reader(rows) if row and row[0] not in replaced]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, content in files.items():
            if info.filename not in replaced:
                archive.writestr(info, content, zipfile.ZIP_DEFLATED)
        for name, content in sorted(texts.items()):
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            archive.writestr(folder + name, content)
            lines.append([folder + name, f"sha256={digest.decode()}", str(len(content))])
        lines.append([record.filename, "", ""])
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(lines)
        archive.writestr(record, text.getvalue())
    print(f"{wheel.name}: licence texts of {', '.join(sorted(texts))}")


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    pairs = (argument.partition("=") for argument in sys.argv[2:])
    add(Path(sys.argv[1]), {name: Path(file).read_bytes() for name, _, file in pairs})


if __name__ == "__main__":
    main()
