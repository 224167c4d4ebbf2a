# SPDX-License-Identifier: BSD-3-Clause
"""gpunvme/_lib.py says what the headers say: sizes, offsets, constants and prototypes."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path

import pytest

from gpunvme import _lib

INCLUDE = Path(__file__).parents[2] / "include"
HEADERS = ["binding", "buf", "memory", "error", "engine", "storage", "transfer", "weights",
           "dataset", "sampler", "loader", "convert", "tiers", "request", "controller", "io", "sim",
           "transport", "ops/core", "ops/matmul", "ops/linear", "ops/attention",
           "ops/norm", "ops/cross_entropy", "ops/optimizer",
           "ops/embedding", "ops/rope", "ops/swiglu", "ops/moe",
           "version"]
# What has another prefix than its constant here.
CONSTANTS = {
    name: f"GPUNVME_{name}"
    for name, value in vars(_lib).items()
    if name.isupper() and isinstance(value, int)
}


def header_text(name: str) -> str:
    """A header; that of the version as CMake would make it, with other numbers."""
    if name != "version":
        return (INCLUDE / "gpunvme" / f"{name}.h").read_text()
    return re.sub(r"@\w+@", "0", (INCLUDE / "gpunvme/version.h.in").read_text())


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What a program that is compiled with the headers says: "struct.field" and constants."""
    folder = tmp_path_factory.mktemp("probe")
    (folder / "gpunvme").mkdir()
    (folder / "gpunvme/version.h").write_text(header_text("version"))
    lines = [f'#include "gpunvme/{header}.h"' for header in HEADERS]
    lines += ["#include <stdio.h>", "int main(void) {"]
    for struct, declared in _lib.STRUCTS.items():
        lines.append(f'printf("{struct} %zu\\n", sizeof(struct {struct}));')
        for field, *_ in declared._fields_:
            where = f"struct {struct}, {field}"
            lines.append(f'printf("{struct}.{field} %zu\\n", offsetof({where}));')
            lines.append(f'printf("{struct}.{field}.size %zu\\n", '
                         f"sizeof(((struct {struct} *)0)->{field}));")
    for name in CONSTANTS.values():
        lines.append(f'printf("{name} %lld\\n", (long long){name});')
    (folder / "probe.c").write_text("\n".join([*lines, "return 0; }", ""]))
    compiler = os.environ.get("CC", "cc")
    program = folder / "probe"
    subprocess.run([compiler, "-std=gnu11", "-I", INCLUDE, "-I", folder, folder / "probe.c", "-o",
                    program], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {line.split()[0]: int(line.split()[1]) for line in printed.splitlines()}


@pytest.mark.parametrize("struct", _lib.STRUCTS)
def test_structure_is_laid_out_as_in_the_header(struct: str, probed: dict[str, int]) -> None:
    declared = _lib.STRUCTS[struct]
    for field, *_ in declared._fields_:
        member = getattr(declared, field)
        assert member.offset == probed[f"{struct}.{field}"], field
        assert member.size == probed[f"{struct}.{field}.size"], field
    if struct in _lib.PREFIXES:
        assert ctypes.sizeof(declared) <= probed[struct]
    else:
        assert ctypes.sizeof(declared) == probed[struct]


def test_constants_have_the_values_of_the_headers(probed: dict[str, int]) -> None:
    bits = (1 << 64) - 1  # the program prints all of them as signed
    assert {name: getattr(_lib, name) & bits for name in CONSTANTS} == {
        name: probed[c_name] & bits for name, c_name in CONSTANTS.items()
    }


def prototypes() -> dict[str, tuple[str, list[str]]]:
    """By function: what it returns, and its arguments, as the headers have them."""
    found = {}
    for header in HEADERS:
        text = re.sub(r"/\*.*?\*/|^#.*?(?<!\\)$", "", header_text(header),
                      flags=re.S | re.M)
        for result, name, arguments in re.findall(
            r"([\w ]+[ *])(gpunvme_\w+)\(([^()]*)\);", text
        ):
            found[name] = result.strip(), [a.strip() for a in arguments.split(",") if a != "void"]
    return found


C_TYPES = {
    "bool": ctypes.c_bool,
    "double": ctypes.c_double,
    "float": ctypes.c_float,
    "gpunvme_err_t": ctypes.c_int,
    "gpunvme_ops_status_t": ctypes.c_int,
    "gpunvme_request_t": ctypes.c_uint64,
    "int": ctypes.c_int,
    "size_t": ctypes.c_size_t,
    "uint16_t": ctypes.c_uint16,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "uint8_t": ctypes.c_uint8,
    "unsigned": ctypes.c_uint,
}


def declared_as(c_type: str, is_result: bool) -> set[object]:
    """The ctypes types that stand for a C type."""
    if "*" in c_type or "[" in c_type:
        return {ctypes.c_void_p, ctypes.c_char_p}
    words = [w for w in c_type.split() if w not in ("const", "volatile", "static")]
    if "enum" in words:
        return {ctypes.c_int}
    if words[0] == "void":
        return {None}
    return {C_TYPES[words[0]]}


@pytest.mark.parametrize("name", [*_lib._FUNCTIONS, *_lib._OPS_FUNCTIONS])
def test_function_is_declared_as_in_the_header(name: str) -> None:
    result, *arguments = {**_lib._FUNCTIONS, **_lib._OPS_FUNCTIONS}[name]
    c_result, c_arguments = prototypes()[name]
    assert result in declared_as(c_result, True), c_result
    assert len(arguments) == len(c_arguments)
    for argument, c_argument in zip(arguments, c_arguments):
        assert argument in declared_as(c_argument, False), c_argument
