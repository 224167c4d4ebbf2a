# SPDX-License-Identifier: BSD-3-Clause
#
# The kernel asks for the function: for another driver, and because the drive is pulled out. Each
# time everything in flight ends with GPUNVME_ERR_REMOVED, and the process lets go, which it notices
# with a drive that works as well.
# MODULES: vfio-pci vfio_iommu_type1 nvme
# PROGRAMS: tests/qemu/guest/vfio_guest
# IOMMU: yes
# CPUS: 2
# NVME: pcie-root-port,id=rp0,slot=1,chassis=1
# NVME: nvme,id=nv0,drive=d0,serial=GUEST0001,bus=rp0
# QMP: pull it out => {"execute":"device_del","arguments":{"id":"nv0"}}

modprobe vfio_iommu_type1
for turn in hold hold hold hold store; do
    bind_to vfio-pci
    rm -f held
    vfio_guest $turn "nvme:$BDF" >held 2>&1 &
    wait_for grep -q holding held
    unbind
    wait $! || { cat held; fail "$turn"; }
done
bind_to vfio-pci
gpunvme bench "nvme:$BDF" --depth 4 --time 600s --quiet >held 2>&1 &
wait_for masters_bus
sleep 2 # it is busy by now
unbind
if wait $!; then fail "the measurement did not notice"; fi
grep -q GPUNVME_ERR_REMOVED held
drive=$(kernel_drive)
dd if="$drive" of=got bs=1M count=1

bind_to vfio-pci
rm held
vfio_guest hold "nvme:$BDF" >held 2>&1 &
wait_for grep -q holding held
tell_host pull it out
wait $! || { cat held; fail "pulled out"; }
grep -q "let go" held
wait_for [ ! -e "/sys/bus/pci/devices/$BDF" ]
expect_fail "there is no PCI function" gpunvme identify "nvme:$BDF"
