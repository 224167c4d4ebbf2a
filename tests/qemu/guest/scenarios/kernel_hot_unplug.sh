# SPDX-License-Identifier: BSD-3-Clause
#
# QEMU takes the drive out of its slot while the guest runs, when the scenario asks for it.
# MODULES: nvme
# QEMU: -device pcie-root-port,id=port0,slot=1,chassis=1
# NVME: nvme,id=nv0,drive=d0,serial=GUEST0001,bus=port0
# QMP: take the drive out => {"execute":"device_del","arguments":{"id":"nv0"}}

drive=$(kernel_drive)
[ -b "$drive" ]
sleep 1 # the slot is not looked after before
tell_host "take the drive out"
wait_for eval "[ ! -e /sys/bus/pci/devices/$BDF ]"
[ ! -b "$drive" ]
