#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Lays the sources out as .clang-format says.
#
#   scripts/format.sh            changes the files
#   scripts/format.sh --check    changes nothing, fails if a file would change
#
# Versions of clang-format differ in what they do, so only version 14 (Debian 12's) is used; the
# exit code is 77, "skipped", where there is another or none.
set -euo pipefail

cd "$(dirname "$0")/.."
version=14
clang_format=
for candidate in clang-format-$version clang-format; do
    if "$candidate" --version 2>/dev/null | grep -q " $version\."; then
        clang_format=$candidate
        break
    fi
done
if [ -z "$clang_format" ]; then
    found=$(clang-format --version 2>/dev/null || echo none)
    echo "SKIP: clang-format $version is not here (found: $found)"
    exit 77
fi

mapfile -t files < <(find include src cli tests bench examples python/csrc -type f \
    \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) 2>/dev/null | sort)
case ${1:-} in
    '') "$clang_format" -i "${files[@]}" ;;
    --check)
        "$clang_format" --dry-run -Werror "${files[@]}"
        echo "format.sh: ${#files[@]} files are laid out as .clang-format says"
        ;;
    *) sed -n '4,10s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
