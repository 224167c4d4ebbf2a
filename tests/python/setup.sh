#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Makes an environment of Python in $FOLDER, with what the tests need, and installs the package of
# $SOURCE there: `pip install ./python`, but without CUDA, which the tests do not need.
set -euo pipefail

python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "SKIP: there is no Python 3.10 or later ($python)"
    exit 77
fi
mkdir -p "$FOLDER"
venv=$FOLDER/venv
if ! "$python" -m venv "$venv" >"$FOLDER/venv.log" 2>&1; then
    echo "SKIP: $python can't make an environment (is python3-venv there?)"
    rm -rf "$venv"
    exit 77
fi
if ! "$venv/bin/python" -c 'import numpy, pytest, hypothesis, mypy, scikit_build_core' 2>/dev/null; then
    if ! "$venv/bin/pip" install --quiet scikit-build-core numpy pytest hypothesis mypy \
        >"$FOLDER/pip.log" 2>&1; then
        echo "SKIP: pip gets no packages: $(tail -n 1 "$FOLDER/pip.log")"
        exit 77
    fi
fi
# Tests of weights compare with it, if there is one.
"$venv/bin/python" -c 'import safetensors' 2>/dev/null ||
    "$venv/bin/pip" install --quiet safetensors >>"$FOLDER/pip.log" 2>&1 || true
"$venv/bin/pip" install --quiet --no-build-isolation --no-deps --no-index --force-reinstall \
    --config-settings=build-dir="$FOLDER/build" --config-settings=cmake.define.GPUNVME_CUDA=OFF \
    "$SOURCE/python"
"$venv/bin/gpunvme" --version
