#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Runs the tests of the Python package in the environment that setup.sh made in $FOLDER.
#
#   run.sh [OPTION OF PYTEST…]
set -euo pipefail

python=$FOLDER/venv/bin/python
if ! "$python" -c 'import gpunvme' 2>/dev/null; then
    echo "SKIP: the package is not installed in $FOLDER"
    exit 77
fi
cd "$FOLDER" # the package that was installed, not the source's
export PYTHONDONTWRITEBYTECODE=1 HYPOTHESIS_STORAGE_DIRECTORY=$FOLDER/hypothesis
"$python" -X dev -m pytest -q -rs --rootdir "$SOURCE/tests/python" -p no:cacheprovider "$@" \
    "$SOURCE/tests/python" | sed 's/^SKIPPED \[[0-9]*\] /SKIP: /'
