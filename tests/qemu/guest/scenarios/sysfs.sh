# SPDX-License-Identifier: BSD-3-Clause
#
# A drive without any driver, by sysfs and huge pages: what the command writes it reads back, and
# everything is given back when it ends.
hugepages 40
uri="nvme:$BDF"
gpunvme identify "$uri" | grep GUEST0001
masters_bus && fail "the controller may still reach memory"
random_bytes 5000001 >sent
gpunvme write --quiet "$uri" --offset 12345 --input sent
gpunvme read --quiet "$uri" --offset 12345 --length 5000001 --output got
cmp sent got
gpunvme bench --quiet "$uri" --block-size 64K --force --read-share 50 --time 1s
masters_bus && fail "the controller may still reach memory"
wait_for no_guard
wait_for all_huge_pages_free
