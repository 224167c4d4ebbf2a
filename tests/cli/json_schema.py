#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks documents that `gpunvme --json` printed: json_schema.py SCHEMA FILE...

Each must fit the schema, by the entry of its own command, and each command of the schema must be
among them, so that neither a subcommand nor the schema is forgotten.
"""
import json
import os
import sys

import jsonschema


def commands_of(schema):
    """The entry of each command; the last entry is of failures that have nothing else to tell."""
    return {s["properties"]["command"]["const"]: s for s in schema["oneOf"][:-1]}


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        schema = json.load(file)
    jsonschema.Draft202012Validator.check_schema(schema)
    commands, seen, bad = commands_of(schema), set(), 0
    for name in sys.argv[2:]:
        with open(name, encoding="utf-8") as file:
            document = json.load(file)
        command = document.get("command")
        seen.add(command)
        if set(document) <= {"command", "uri", "error"}:
            entry = schema["oneOf"][-1]
        else:
            entry = commands.get(command, False)
        entry = {"$defs": schema["$defs"], "allOf": [entry]}
        for validator in (entry, schema):
            errors = list(jsonschema.Draft202012Validator(validator).iter_errors(document))
            if errors:
                bad += 1
                print(f"{name} ({command}): {errors[0].json_path}: {errors[0].message[:300]}")
                break
    missing = set(commands) - seen - {"topology"}  # a build without hwloc has none to print
    if os.environ.get("CLI_TEST_JANSSON", "1") != "1":
        missing = {command for command in missing if not command.startswith("weights ")}
    if os.environ.get("CLI_TEST_SQLITE", "1") != "1":
        missing = {command for command in missing if not command.startswith("tier ")}
    if missing:
        print("no document of:", ", ".join(sorted(missing)))
    sys.exit(bool(bad or missing))


main()
