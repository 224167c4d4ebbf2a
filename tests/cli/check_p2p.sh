#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# gpunvme check-p2p: what the software controller reaches, and that what could harm a machine is
# refused before anything is opened. Drives are folders like those of sysfs.
. "$(dirname "$0")/lib.sh"
bdf=0000:01:00.0
dev=sys/bus/pci/devices/$bdf
mkdir -p $dev proc sys/bus/pci/drivers/nvme
ln -s ../../drivers/nvme $dev/driver
echo 0x010802 >$dev/class
machine() { # VENDOR FLAG
    echo "$1" >$dev/vendor
    echo "flags : fpu $2 vme" >proc/cpuinfo
}

promise "the software controller reaches tier 2 on a GPU; without one what stands in is told"
gpunvme info --json
if grep -q '"no_gpu": null' out; then
    tier=2 simulated=false reached='Reached: tier 2, by the software controller'
else
    tier=1 simulated=true reached='Reached: tier 1; what lies above it needs a GPU: simulated'
fi
gpunvme check-p2p sim:size=64M
expect 0
expect_out "$reached"
expect_out '^  ok  data'
expect_out '^  -   registers +a software controller has no BAR'
gpunvme check-p2p sim:size=64M --json
expect 0
expect_json
expect_out "\"tier\": $tier,"
expect_out "\"simulated_gpu\": $simulated"

promise "a tiny namespace does as well, and nothing is written"
random_file disk.img 4096
cp disk.img before.img
gpunvme check-p2p sim:image=disk.img
expect 0
same disk.img before.img

promise "a drive whose reads fail is told"
gpunvme check-p2p sim:size=64M,fault=status=2/81:lba=1:read
expect 1
expect_out '^  no  data'
expect_out 'Reached: tier 1'

promise "the first step that fails is the error of the document and of standard error"
gpunvme check-p2p sim:size=64M,fault=status=2/81:lba=1:read --json
expect 1 'data: '
expect_json
expect_out '"name": "GPUNVME_SC_UNRECOVERED_READ"'
expect_out '"text": "data: '
machine 0x1b36 none
gpunvme check-p2p --root . $bdf --json
expect 1 'machine: the drive is emulated'
expect_json
expect_out '"name": "GPUNVME_ERR_UNSUPPORTED"'
gpunvme check-p2p sim:size=64M --json
expect 0
check test "$(grep -c '"error"' out)" -eq 0

promise "an emulated drive is refused before it is opened"
for vendor in 0x1b36 0x1af4 0x15ad; do
    machine $vendor none
    gpunvme check-p2p --root . $bdf
    expect 1
    expect_out '^  no  machine +the drive is emulated'
    check test "$(grep -c transport out)" -eq 0
done

promise "a virtual machine is refused before the drive is opened"
machine 0x144d hypervisor
gpunvme check-p2p --root . $bdf --json
expect 1
expect_json
expect_out 'virtual machine'
check test "$(grep -c '"result"' out)" -eq 1

promise "--force-unsafe goes on to the next step"
gpunvme check-p2p --root . $bdf --force-unsafe
expect 1
expect_out '^  ok  machine +not looked at'
expect_out '^  no  transport'

promise "a real drive that the kernel has is told with the way to get it"
machine 0x144d none
gpunvme check-p2p --root . nvme:$bdf
expect 1
expect_out '^  ok  machine'
expect_out 'vfio-bind.sh'

promise "what is no drive is told"
gpunvme check-p2p --root . 0000:77:00.0
expect 1
expect_out 'there is no PCI function'
gpunvme check-p2p --root . nonsense
expect 1
expect_out 'no PCI address'
if [ "${CLI_TEST_USE_SIM:-OFF}" != 1 ]; then
    gpunvme check-p2p
    check test $code -ne 0
fi
finish
