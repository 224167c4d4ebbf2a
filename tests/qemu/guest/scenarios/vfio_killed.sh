# SPDX-License-Identifier: BSD-3-Clause
#
# A process that is killed in the middle of writes leaves the drive to the kernel's driver, and to
# the next process.
# MODULES: vfio-pci vfio_iommu_type1 nvme
# IOMMU: yes

modprobe vfio_iommu_type1
bind_to vfio-pci
random_bytes 1048576 >sent
gpunvme write "nvme:$BDF" --quiet -i sent --offset 128M
for turn in 1 2 3; do
    gpunvme bench "nvme:$BDF" --quiet --force --read-share 0 --length 64M --time 600s >bench.out 2>&1 &
    pid=$!
    sleep 0.$((turn * 3))
    [ "$(head -c 7 "/proc/$pid/comm")" = gpunvme ]
    kill -9 $pid
    wait $pid || true
    gpunvme read "nvme:$BDF" --quiet -o got --offset 128M --length 1M
    cmp sent got
done
gpunvme bench "nvme:$BDF" --quiet --force --read-share 0 --length 64M --time 600s >bench.out 2>&1 &
sleep 0.5
kill -9 $!
wait $! || true
drive=$(kernel_drive)
dd if="$drive" of=got bs=1M skip=128 count=1
cmp sent got
dd if=sent of="$drive" bs=64k conv=fsync
