#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# code_of_page.sh PAGE FILE: all code marked as C in PAGE goes to FILE, where a launch of a kernel
# is a macro, LAUNCH(kernel, blocks, threads, arguments…).
set -euo pipefail

sed -n '/^```c$/,/^```$/{/^```/d;p}' "$1" |
    sed 's/\([a-z_]*\)<<<\([^,]*\), \([^>]*\)>>>(\(.*\));/LAUNCH(\1, \2, \3, \4);/' >"$2"
[ -s "$2" ]
