# SPDX-License-Identifier: BSD-3-Clause
#
# What can't work without a driver is refused, with the reason: no huge pages, no right to know
# physical addresses, a function that another driver has. The controller is left without access
# to memory.
# MODULES: nvme

uri="nvme:$BDF"
expect_fail "vm.nr_hugepages" gpunvme identify "$uri"
masters_bus && fail "the controller may still reach memory"
wait_for no_guard

# Files by which everybody could reach the function, and a user with no rights but that.
hugepages 40
cd "/sys/bus/pci/devices/$BDF"
echo 1 >enable
chmod 666 config resource0 enable
cd /
expect_fail "the kernel hides physical addresses" as_user gpunvme identify "$uri"
masters_bus && fail "the controller may still reach memory"
wait_for no_guard
wait_for all_huge_pages_free

kernel_drive
expect_fail "via=sysfs is for a function without" gpunvme identify "$uri,via=sysfs"
expect_fail "belongs to the kernel's nvme driver" gpunvme identify "$uri"
