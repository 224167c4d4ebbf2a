#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# gpunvme store: which way the bytes of a store go.
. "$(dirname "$0")/lib.sh"

head -c 3000001 /dev/urandom >file

promise "a file is read to its end, and its way is told"
gpunvme store file
expect 0
expect_out '^  backend     posix'
expect_out '^  size        2.86 MiB'
expect_out '^  read        2.86 MiB in '
expect_out 'by the way "(bounce|p2p|host)"'

promise "--json has the same"
gpunvme store --json "file:$PWD/file?threads=2"
expect 0
expect_json
expect_out '"bytes": 3000001'
expect_out '"to_gpu": "(bounce|p2p|host)"'

promise "a part is read, into memory of any kind, registered or not"
for memory in host pinned gpu; do
    gpunvme store --json --memory $memory --offset 1000 --length 1M --unregistered file
    expect 0
    expect_out '"bytes": 1048576'
done
gpunvme store --json --memory host file
expect_out '"host": 3000001'

promise "a store is opened without being read"
gpunvme store --json --length 0 file
expect 0
expect_out '"bytes": 0'

promise "a way that is not there is an error where it is required"
gpunvme store "file:$PWD/file?require=p2p"
expect 1 "require=p2p"

promise "without a GPU no way leads to one: what stands in is told, and no way is met"
gpunvme info --json
if ! grep -q '"no_gpu": null' out; then
    for uri in sim:size=1M "file:$PWD/file"; do
        gpunvme store "$uri"
        expect 0
        expect_out "to the GPU  simulated: host memory stands in for the GPU's"
        expect_out 'by the way "host"'
        check test "$(grep -c p2p out)" -eq 0
        for way in p2p bounce compat; do
            gpunvme store "$uri?require=$way"
            expect 1 "there is no GPU"
        done
    done
fi

promise "what can't be opened is told"
gpunvme store nowhere
expect 1 "nowhere"
gpunvme store "file:$PWD/file?thread=2"
check test $code -ne 0
gpunvme store "nothing:x"
check test $code -ne 0
gpunvme store --memory disk file
expect 2 "host, pinned or gpu"

promise "a timeout without a unit is refused, with the unit that it lacks"
gpunvme store 'sim:?timeout=30'
expect 2 "'30': a time needs a unit: 30s"

finish
