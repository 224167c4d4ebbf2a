#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# boot.sh for the scenarios in kmod/: builds the kernel module for the guest's kernel and puts it,
# and kmod_check, into the guest.
#
#   kmod.sh SCENARIO BUILD_FOLDER CHECK_PROGRAM [OPTION of boot.sh]...
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
scenario=$1 build=$2 check=$3
shift 3


kernel=$("$here/kernel.sh" ${KMOD_KERNEL:+"$KMOD_KERNEL"}) || { s=$?; echo "$kernel"; exit $s; }
module=$("$here/../../../kmod/build-for-debian.sh" "$(cat "$kernel/release")" "$kernel") ||
    { s=$?; echo "$module"; exit $s; }
exec "$here/boot.sh" "$scenario" --build "$build" --kernel "$kernel" --module "$module" \
    --program "$check" "$@"
