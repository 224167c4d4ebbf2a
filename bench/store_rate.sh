#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# All ways between a file of the kernel and memory: tmpfs, the page cache and the drive, in long
# reads, random ones and batches of small ones. JSON, a file for each question, in FOLDER.
#
#   bench/store_rate.sh BUILD FOLDER [gpu|pinned|host] [BYTES [SECONDS]]
#
# BYTES (4G) is the size of the files, in /dev/shm and in GPUNVME_DISK_DIR (/tmp). After SECONDS
# (1800) nothing more is begun, and what runs is stopped. The exit code is 1 if a question has no
# whole answer: what there is of it is in its file.
set -euo pipefail

build=$1 out=$2 mem=${3:-gpu} size=${4:-4G} seconds=${5:-1800} failed=0
rate=$build/bench/store_rate
ram=/dev/shm/gpunvme-rate disk=${GPUNVME_DISK_DIR:-/tmp}/gpunvme-rate
mkdir -p "$out"
trap 'rm -f "$ram" "$disk"' EXIT

# ask NAME arguments…
ask() {
    local name=$1
    shift
    local left=$((seconds - SECONDS))
    if ((left < 2)); then
        echo "$name: no result: the $seconds s are over" >&2
        failed=1
        return
    fi
    echo "== $name, after $SECONDS s" >&2
    # Line by line, so that what was measured is there if it is stopped.
    timeout --foreground -k 5 $((left < 300 ? left : 300)) stdbuf -oL "$rate" --mem "$mem" "$@" \
        >"$out/$name.json" && return
    echo "$name: no whole result" >&2
    failed=1
}

ways=";chunk=256K;chunk=512K;chunk=1M;chunk=4M;threads=8;threads=12"

ask tmpfs_read --uri "file:$ram" --make "$size" --vary "$ways"
ask tmpfs_read_whole --uri "file:$ram" --whole
ask tmpfs_64k --uri "file:$ram" --block 64K --batch 10000 --random --total 655360000 \
    --vary ";chunk=256K"
ask tmpfs_4k --uri "file:$ram" --block 4K --batch 8192 --random --total 1G \
    --vary ";threads=8"
ask tmpfs_4k_calls --uri "file:$ram" --block 4K --random --total 64M
ask tmpfs_write --uri "file:$ram" --op write --vary ";chunk=512K;chunk=1M;threads=8"
rm -f "$ram"
ask cached_read --uri "file:$disk" --make "$size" --vary "$ways"
ask cached_read_whole --uri "file:$disk" --whole
ask cold_read --uri "file:$disk" --cold --runs 3 \
    --vary ";direct=off;uring=off;chunk=512K;threads=4"
ask cold_64k --uri "file:$disk" --cold --block 64K --batch 256 --random --total 1G --runs 3
ask cold_4k --uri "file:$disk" --cold --block 4K --batch 1024 --random --total 256M --runs 3
exit $failed
