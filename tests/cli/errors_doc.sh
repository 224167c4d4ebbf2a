#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# docs/ERRORS.md has every error of error.h with a cause and a remedy, and no other.
#   errors_doc.sh SOURCE_DIR
set -u
header=$1/include/gpunvme/error.h
page=$1/docs/ERRORS.md
failures=0

fail() {
    echo "FAILED: $1"
    failures=$((failures + 1))
}

known=$(sed -n 's/^ *X(\([A-Z_]*\), *-[0-9]*,.*/\1/p' "$header" | sort)
told=$(sed -n 's/^### GPUNVME_ERR_\([A-Z_]*\) .*/\1/p' "$page" | sort)
[ "$(echo "$known" | wc -l)" -ge 25 ] || fail "the errors can't be read from $header"

for name in $(comm -23 <(echo "$known") <(echo "$told")); do
    fail "$page lacks GPUNVME_ERR_$name"
done
for name in $(comm -13 <(echo "$known") <(echo "$told")); do
    fail "$page has GPUNVME_ERR_$name, which does not exist"
done
for name in $told; do
    section=$(awk -v head="### GPUNVME_ERR_$name " '
        index($0, "### ") == 1 || index($0, "## ") == 1 { on = index($0, head) == 1 }
        on' "$page")
    number=$(sed -n "s/^ *X($name, *\(-[0-9]*\),.*/\1/p" "$header")
    echo "$section" | grep -q "^### .* ($number)\$" || fail "GPUNVME_ERR_$name is $number"
    echo "$section" | grep -q '^\*\*Cause\.\*\* .' || fail "GPUNVME_ERR_$name has no cause"
    echo "$section" | grep -q '^\*\*Remedy\.\*\* .' || fail "GPUNVME_ERR_$name has no remedy"
done
echo "$(echo "$told" | wc -l) errors, $failures failures"
exit $((failures > 0))
