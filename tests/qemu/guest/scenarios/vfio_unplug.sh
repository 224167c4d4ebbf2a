# SPDX-License-Identifier: BSD-3-Clause
#
# The kernel asks for the function twice: for its own driver, and because the drive is pulled out.
# Each time everything in flight ends with GPUNVME_ERR_REMOVED, and the process lets go.
# MODULES: vfio-pci vfio_iommu_type1 nvme
# PROGRAMS: tests/qemu/guest/vfio_guest
# IOMMU: yes
# CPUS: 2
# NVME: pcie-root-port,id=rp0,slot=1,chassis=1
# NVME: nvme,id=nv0,drive=d0,serial=GUEST0001,bus=rp0
# QMP: pull it out => {"execute":"device_del","arguments":{"id":"nv0"}}

modprobe vfio_iommu_type1
for turn in 1 2 3 4; do
    bind_to vfio-pci
    rm -f held
    vfio_guest hold "nvme:$BDF" >held 2>&1 &
    wait_for 20 grep -q holding held
    unbind
    wait $! || { cat held; fail "turn $turn"; }
done
drive=$(kernel_drive)
dd if="$drive" of=got bs=1M count=1

bind_to vfio-pci
rm held
vfio_guest hold "nvme:$BDF" >held 2>&1 &
wait_for 20 grep -q holding held
tell_host pull it out
wait $! || { cat held; fail "pulled out"; }
grep -q "let go" held
wait_for 20 [ ! -e "/sys/bus/pci/devices/$BDF" ]
expect_fail "there is no PCI function" gpunvme identify "nvme:$BDF"
