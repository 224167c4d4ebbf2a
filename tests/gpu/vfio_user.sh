#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Threads of a GPU drive a controller in another process: they ring doorbells that its vfio-user
# server maps, and read data that it writes into this process's pinned memory.
#
#   vfio_user.sh GPUNVME TEST_GPU_QUEUE
set -u

nvidia-smi -L >/dev/null 2>&1 || { echo "SKIP: no GPU: nvidia-smi finds none"; exit 77; }
dir=$(mktemp -d)
"$1" sim --listen "$dir/nvme" sim:size=1M >"$dir/log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; wait $server; cat "$dir/log"; rm -rf "$dir"' EXIT
for _ in $(seq 1000); do
    [ -S "$dir/nvme" ] && break
    sleep 0.1
done
timeout 60 "$2" "vfio-user:$dir/nvme" || exit 1

# The server tells at its end what the driver did wrong, and fails if it did.
kill $server
wait $server
status=$?
trap 'cat "$dir/log"; rm -rf "$dir"' EXIT
[ $status -eq 0 ] || { echo "the server ended with $status"; exit 1; }
