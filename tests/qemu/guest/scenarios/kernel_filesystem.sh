# SPDX-License-Identifier: BSD-3-Clause
#
# Files in a file system (ext4) that the kernel wrote are found, byte by byte, in what
# `gpunvme read` gives of the drive. While it is mounted, the drive is not opened for writing,
# whatever is forced.
# TOOLS: mke2fs
# MODULES: nvme ext4 loop
# DRIVE: 64M

modprobe loop
drive=$(kernel_drive)
# By its path, since busybox has an mke2fs of its own.
/bin/mke2fs -q -t ext4 "$drive"
mount -t ext4 "$drive" /mnt
random_bytes 3000000 >/mnt/random.bin
mkdir /mnt/folder
echo "written by the kernel" >/mnt/folder/text.txt
(cd /mnt && sha256sum random.bin folder/text.txt) >sums
expect_fail "is mounted" gpunvme stripe create "$drive"
expect_fail "is mounted" gpunvme stripe create --force "$drive"
gpunvme store --memory host --length 64K "$drive"
umount /mnt
expect_fail "ext4" gpunvme stripe create "$drive"
unbind

# What ours reads of the whole drive, the kernel mounts from a file.
hugepages 20
gpunvme read --quiet "nvme:$BDF" --output image
mount -t ext4 -o ro,loop image /mnt
sums=$PWD/sums
(cd /mnt && sha256sum -c "$sums")
umount /mnt
