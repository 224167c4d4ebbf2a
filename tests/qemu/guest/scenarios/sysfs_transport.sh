# SPDX-License-Identifier: BSD-3-Clause
#
# The transports sysfs and uio keep their promises to the protocol code: registers, mapped BARs,
# function reset, bus addresses of huge pages only. And, as this guest has FUSE where a build machine
# need not: the vfio-user server survives files that never answer.
# MODULES: uio_pci_generic fuse
# PROGRAMS: tests/qemu/guest/guest_transport tests/sim/test_serve_fuse

hugepages 40
export GPUNVME_URI="nvme:$BDF"
guest_transport
gpunvme identify | grep GUEST0001
bind_to uio_pci_generic
guest_transport
gpunvme identify | grep GUEST0001
modprobe fuse
test_serve_fuse
