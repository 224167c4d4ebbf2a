# SPDX-License-Identifier: BSD-3-Clause
#
# A drive bound to uio_pci_generic works by sleeping until its INTx interrupt comes, which it
# does again and again.
# MODULES: uio_pci_generic

interrupts() {
    awk '/uio_pci_generic/ { print $2 }' /proc/interrupts
}

hugepages 40
bind_to uio_pci_generic
uri="nvme:$BDF"
before=$(interrupts)
random_bytes 5000001 >sent
gpunvme write --quiet --interrupts "$uri" --offset 12345 --input sent
gpunvme read --quiet --interrupts "$uri" --offset 12345 --length 5000001 --output got
cmp sent got
gpunvme bench --quiet --interrupts "$uri" --depth 1 --time 1s
after=$(interrupts)
[ $((${after:-0} - ${before:-0})) -ge 100 ] || fail "only ${after:-0} interrupts"
