# SPDX-License-Identifier: BSD-3-Clause
#
# While a process drives the controller, a second one is refused.
# A process that is killed while the drive reads and writes its memory (sysfs alone) leaves a controller
# that no longer reaches memory, no huge page in use, and a drive that the kernel's driver takes.
# MODULES: nvme

hugepages 40
gpunvme bench --quiet --force --read-share 50 "nvme:$BDF" --time 600s >bench.out 2>&1 &
bench=$!
wait_for masters_bus
sleep 1
expect_fail "is in use" gpunvme identify "nvme:$BDF"
masters_bus
kill -0 $bench
kill -9 $bench
wait_for eval '! masters_bus'
wait_for no_guard
wait_for all_huge_pages_free

drive=$(kernel_drive)
random_bytes 1048576 >sent
dd if=sent of="$drive" bs=64k conv=fsync
echo 3 >/proc/sys/vm/drop_caches
dd if="$drive" of=got bs=64k count=16
cmp sent got
