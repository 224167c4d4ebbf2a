# SPDX-License-Identifier: BSD-3-Clause
#
# A drive bound to uio_pci_generic works by polling.
# MODULES: uio_pci_generic

hugepages 40
bind_to uio_pci_generic
uri="nvme:$BDF"
gpunvme identify "$uri" | grep GUEST0001
random_bytes 5000001 >sent
gpunvme write --quiet "$uri" --offset 12345 --input sent
gpunvme read --quiet "$uri" --offset 12345 --length 5000001 --output got
cmp sent got
gpunvme bench --quiet "$uri" --time 1s
