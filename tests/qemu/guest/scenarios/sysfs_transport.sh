# SPDX-License-Identifier: BSD-3-Clause
#
# The transports sysfs and uio keep their promises to the protocol code: registers, mapped BARs,
# function reset, bus addresses of huge pages only.
# MODULES: uio_pci_generic
# PROGRAMS: tests/qemu/guest/guest_transport

hugepages 40
export GPUNVME_URI="nvme:$BDF"
guest_transport
gpunvme identify | grep GUEST0001
bind_to uio_pci_generic
guest_transport
gpunvme identify | grep GUEST0001
