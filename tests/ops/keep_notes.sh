#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Runs a compiler. Where it is asked for the assembler's notes (-Xptxas=-v), they go to OBJECT.notes,
# which wgmma.sh reads, and not to the terminal.
#
#   keep_notes.sh OBJECT COMPILER ARGUMENT…
set -uo pipefail

object=$1
shift
[[ " $* " = *" -Xptxas=-v "* ]] || exec "$@"
note='^ptxas info|^    [0-9]+ bytes stack frame|incompatible redefinition for option .Ofast-compile'
rm -f "$object.notes"
"$@" 2>"$object.said"
status=$?
grep -vE "$note" "$object.said" >&2
((status)) || grep -E "$note|^ptxas" "$object.said" >"$object.notes"
rm -f "$object.said"
exit $status
