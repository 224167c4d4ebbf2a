#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# named_tests.sh ROOT: each promise that docs/TESTING.md quotes behind a test program (`test_posix`:
# `a_full_file_system_…`) stands in a test. "…" is the rest of a name.
set -u
cd "$1" || exit

missing=0 quoted=0
while IFS= read -r name; do
    quoted=$((quoted + 1))
    grep -rqF --exclude='*.md' -- "${name%…}" tests || {
        echo "docs/TESTING.md: no test promises $name"
        missing=1
    }
done < <(grep -oE '`[a-z0-9]+(_[a-z0-9]+){2,}_?…?`' docs/TESTING.md | tr -d '`' |
    grep -vE '^(test|cli|guest|gpu|conformance)_' | sort -u)
[ "$quoted" -gt 50 ] || { echo "docs/TESTING.md quotes only $quoted promises"; exit 1; }
exit $missing
