#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A controller that is found in any state, or that fails at any step of its bring-up.
. "$(dirname "$0")/lib.sh"

promise "a controller is found in whatever state firmware left it"
for state in initial_cc=1,initial_csts=1 initial_cc=0x460001,initial_csts=1 initial_csts=2 \
    initial_cc=1,initial_csts=3 initial_cc=0x4001,initial_csts=9; do
    gpunvme identify "sim:$state"
    expect 0
    expect_out '^Namespace 1'
done

promise "a controller that never becomes ready is told, with the step"
gpunvme identify sim:ready=30s,timeout=500ms
expect 1 GPUNVME_ERR_TIMEOUT
expect 1 "CSTS"

promise "a slow but honest controller is waited for"
gpunvme identify sim:ready=700ms
expect 0

# Every admin command of the bring-up, failing in every way. `identify` reads the controller, the
# namespaces; the others configure queues, events and shadow doorbells.
for command in identify set_features; do
    promise "a status of $command ends the bring-up with its name"
    gpunvme identify "sim:fault=status=0/6:$command"
    expect 1 GPUNVME_SC_INTERNAL
    promise "a controller that fails at $command is told"
    gpunvme identify "sim:fault=cfs:$command"
    expect 1 GPUNVME_ERR_FATAL
    promise "a controller that disappears at $command is told"
    gpunvme identify "sim:fault=remove:$command"
    expect 1 GPUNVME_ERR_REMOVED
done

promise "a controller that is gone from the start is told"
gpunvme dump-bar0 sim:fault=remove:identify
expect 0
gpunvme dump-bar0 --up sim:fault=remove:identify
expect 1 GPUNVME_ERR_REMOVED

promise "a queue that can't be made is told"
truncate -s 1M disk.img
gpunvme read "sim:image=disk.img,fault=status=0/6:create_sq" -o out.bin
expect 1 GPUNVME_SC_INTERNAL
gpunvme read "sim:image=disk.img,fault=remove:create_cq" -o out.bin
expect 1 GPUNVME_ERR_REMOVED

promise "registers are shown as they are found, and after the bring-up"
gpunvme dump-bar0 sim:initial_csts=2
expect 0
expect_out 'CFS +1 +fatal status'
gpunvme dump-bar0 sim:mqes=63,dstrd=2 --json
expect 0
expect_json
expect_out '"MQES": 63'
expect_out '"DSTRD": 2'
gpunvme dump-bar0 --up sim:
expect 0
expect_out 'RDY +1 +ready'

promise "identify shows every namespace, those too that can't be used"
gpunvme identify sim:size=1M,ns=3,size=2M,block=4096,ns=9,size=1M,metadata=8
expect 0
expect_out '^Namespace 1$'
expect_out '^Namespace 3$'
expect_out '512 of 4096 bytes'
expect_out 'usable +no: .*metadata'
gpunvme identify sim:size=1M,ns=3,size=2M --json
expect 0
expect_json
expect_out '"nsid": 3'
gpunvme identify sim:size=1M -n 2
expect 1 GPUNVME_ERR_NO_NAMESPACE

finish
