# SPDX-License-Identifier: BSD-3-Clause
#
# The kernel module, built for this kernel, gives a drive to programs: it is driven through it,
# what must be refused is, and the kernel's nvme driver gets it back after a killed process.
# MODULES: nvme vgem fuse

hugepages 8
modprobe vgem
modprobe fuse
bind_to gpunvme
device=/dev/gpunvme/$BDF
[ "$(stat -c %a "$device")" = 600 ]

# Without an IOMMU the opener can reach all memory: it needs more than the file, and is told of.
[ "$(kmod_check "$device" info | head -n 1)" = "no IOMMU" ]
dmesg | grep "opened without an IOMMU by kmod_check"
[ $(($(cat /proc/sys/kernel/tainted) & 64)) -ne 0 ] # "U", as VFIO's no-IOMMU mode sets it
chown 1000 "$device"
expect_fail "errno 1)" as_user "kmod_check $device info"

for check in refusals second limit dmabuf reset threads; do
    kmod_check "$device" $check || [ $? = 77 ]
done

random_bytes 1048576 >sent
gpunvme identify "nvme:$BDF" | grep GUEST0001
gpunvme write "nvme:$BDF" --input sent --offset 64K
gpunvme read "nvme:$BDF" --offset 64K --length 1M --output got
cmp sent got
gpunvme bench "nvme:$BDF" --time 1s
gpunvme bench "nvme:$BDF" --time 1s --interrupts
echo 0 >/proc/sys/vm/nr_hugepages
expect_fail "reserve huge pages" gpunvme identify "nvme:$BDF"

# A killed process: the controller is stopped, and everything is let go.
hugepages 8
gpunvme bench "nvme:$BDF" --time 60s >/dev/null &
victim=$!
sleep 2
kill -9 $victim
wait $victim || true
kmod_check "$device" refusals

drive=$(kernel_drive)
dd if="$drive" of=got bs=64k skip=1 count=16
cmp sent got

# Unbound while a process holds it.
bind_to gpunvme
kmod_check "$device" hold >held 2>&1 &
holder=$!
wait_for grep -q held held
unbind
wait $holder || { cat held; fail "the holder"; }
[ ! -e "$device" ]

# Processes that are stuck in their own memory hold up nobody, and the function can be unbound.
bind_to gpunvme
kmod_stuck "$device"
[ ! -e "$device" ]
rmmod gpunvme
drive=$(kernel_drive)
dd if="$drive" of=got bs=64k skip=1 count=16
cmp sent got

# Nothing of this made the kernel complain.
if dmesg | grep -e 'WARNING:' -e 'BUG:' -e 'BUG ' -e Oops; then
    fail "the kernel complained"
fi
