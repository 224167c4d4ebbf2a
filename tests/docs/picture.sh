#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# picture.sh ROOT: the picture of README.md is what its script draws.
set -euo pipefail

images=$1/docs/images
command -v python3 >/dev/null || { echo "SKIP: there is no python3"; exit 77; }
python3 "$images/architecture.py" | cmp - "$images/architecture.svg" ||
    { echo "run docs/images/architecture.py > docs/images/architecture.svg"; exit 1; }
