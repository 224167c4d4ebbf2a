# SPDX-License-Identifier: BSD-3-Clause
#
# Files in a file system (ext4) that the kernel wrote are found, byte by byte, in what
# `gpunvme read` gives of the drive.
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
umount /mnt
unbind

# What ours reads of the whole drive, the kernel mounts from a file.
hugepages 20
gpunvme read --quiet "nvme:$BDF" --output image
mount -t ext4 -o ro,loop image /mnt
sums=$PWD/sums
(cd /mnt && sha256sum -c "$sums")
umount /mnt
