# SPDX-License-Identifier: BSD-3-Clause
#
# scripts/vfio-bind.sh and vfio-unbind.sh as they are, on a real kernel: an idle drive goes to
# vfio-pci and comes back, and one that anything uses stays where it is, with every user named.
# MODULES: nvme vfio-pci vfio_iommu_type1 ext4 loop dm-mod md-mod nvmet
# TOOLS: bash blkid sfdisk mke2fs dmsetup
# PERL: strict warnings Errno Fcntl
# FILES: scripts/vfio-bind.sh scripts/vfio-unbind.sh scripts/pci.sh scripts/holders.pl
# FILES: scripts/check-prereqs.sh
# IOMMU: yes
# CPUS: 2
# SECONDS: 900
# DRIVE: 64M
# QEMU: -drive if=none,id=d1,format=raw,file.driver=null-co,file.size=67108864,file.read-zeroes=on
# NVME: nvme,id=nv0,drive=d0,serial=GUEST0001
# NVME: nvme-subsys,id=subsystem
# NVME: nvme,id=nv1,serial=GUEST0002,subsys=subsystem
# NVME: nvme-ns,drive=d1,nsid=1,bus=nv1

export PATH=/bin:/sbin # of this machine before busybox's
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
bind() { bash /scripts/vfio-bind.sh "$@"; }
give_back() { bash /scripts/vfio-unbind.sh "$@"; }

# refused TEXT...: the drive is not even taken with --force, and the message has each TEXT.
refused() {
    local text
    expect_fail "is in use and stays where it is" bash /scripts/vfio-bind.sh --force "$BDF"
    for text in "$@"; do
        grep -qF -e "$text" /tmp/expect.out || fail "the message does not say \"$text\""
    done
    [ "$(driver_of)" = nvme ]
}

# Processes that only hold something. `hold NODE` has it open.
holders=""
hold() {
    sleep 1000 3<>"$1" &
    holders="$holders $!"
}
end_holders() {
    local pid
    for pid in $holders; do
        kill "$pid"
        wait "$pid" || true
    done
    holders=""
}

modprobe vfio_iommu_type1 # busybox's modprobe knows no soft dependencies
modprobe ext4
modprobe loop
modprobe dm-mod
modprobe md-mod
drive=$(kernel_drive)
disk=${drive#/dev/}

# Idle: it is bound, driven, and given back.
bind "$BDF" >bound
grep -q "GUEST0001) goes from nvme to vfio-pci" bound
[ "$(driver_of)" = vfio-pci ]
bash /scripts/check-prereqs.sh >prereqs || { cat prereqs; fail "check-prereqs.sh"; }
gpunvme identify "nvme:$BDF" | grep GUEST0001

# Driven by a process: neither taken nor given back.
gpunvme bench "nvme:$BDF" --time 600s --quiet >/dev/null &
holders=$!
wait_for masters_bus
for script in vfio-bind.sh\ --driver\ none vfio-unbind.sh; do
    expect_fail "is open in process $holders (gpunvme): end that first" bash /scripts/$script "$BDF"
    [ "$(driver_of)" = vfio-pci ]
done
end_holders
give_back "$BDF"
[ "$(driver_of)" = nvme ]
wait_for [ -b "$drive" ]

# Mounted where only another process sees it; and nowhere any more, but not let go of either.
/bin/mke2fs -q -t ext4 "$drive"
mount "$drive" /mnt
unshare -m sleep 1000 &
holders=$!
wait_for eval '[ "$(readlink /proc/$holders/ns/mnt)" != "$(readlink /proc/self/ns/mnt)" ]'
umount /mnt
refused "$disk is mounted on /mnt: umount /mnt"
end_holders
mount "$drive" /mnt
(cd /mnt && exec sleep 1000) &
holders=$!
wait_for eval '[ "$(readlink /proc/$holders/cwd)" = /mnt ]'
umount -l /mnt
refused "$drive: Device or resource busy (this must be opened exclusively"
end_holders

# All other uses at once, of which each must be found: partitions that are mounted, swapped to, in a
# RAID and below a volume; processes; a loop device; an export.
sfdisk -q "$drive" <<'END'
label: gpt
size=8M, type=U
size=8M
size=8M
size=8M
size=8M
END
wait_for [ -b "${drive}p5" ]
/bin/mke2fs -q -t ext4 "${drive}p2"
mount "${drive}p2" /mnt
mkswap "${drive}p3"
swapon "${drive}p3"
echo md_test >/sys/module/md_mod/parameters/new_array
cat "/sys/block/$disk/${disk}p4/dev" >/sys/block/md_test/md/new_dev
dmsetup --noudevsync create volume --table "0 2048 linear ${drive}p5 0"
for node in "$drive" "${drive}p1" "/dev/ng${disk#nvme}" "/dev/${disk%n1}"; do
    hold "$node"
done
losetup /dev/loop0 "$drive"
modprobe nvmet
mount -t configfs none /sys/kernel/config
subsystem=/sys/kernel/config/nvmet/subsystems/test
mkdir "$subsystem" "$subsystem/namespaces/1"
echo -n "$drive" >"$subsystem/namespaces/1/device_path"
echo 1 >"$subsystem/namespaces/1/enable"
refused "${disk}p2 is mounted on /mnt: umount /mnt" \
    "${disk}p3 is used as swap: swapoff ${drive}p3" \
    "${disk}p4 is part of md_test: mdadm --stop /dev/md_test" \
    "${disk}p5 is part of dm-0 (volume)" \
    "$drive is open in process" "${drive}p1 is open in process" \
    "/dev/ng${disk#nvme} is open in process" "/dev/${disk%n1} is open in process" \
    "is open in process ${holders##* } (sleep): end that first" \
    "$disk backs loop0: losetup -d /dev/loop0" \
    "$disk is exported: echo 0 > $subsystem/namespaces/1/enable"
echo 0 >"$subsystem/namespaces/1/enable"
losetup -d /dev/loop0
end_holders
dmsetup --noudevsync remove volume
echo clear >/sys/block/md_test/md/array_state
swapoff "${drive}p3"
umount /mnt

# Idle, but with a partition that a machine boots from: taken by --force only. Meanwhile nobody
# mounts what the script has claimed.
expect_fail "${disk}p1 is an EFI system partition" bash /scripts/vfio-bind.sh "$BDF"
grep -q "${disk}p2 holds ext4, and nothing uses it" /tmp/expect.out
perl /scripts/holders.pl /proc claim "$drive" >claim &
holders=$!
wait_for grep -q end claim
mount "${drive}p2" /mnt && fail "it was mounted while the script had claimed it"
end_holders
bind --force "$BDF"
[ "$(driver_of)" = vfio-pci ]
give_back "$BDF"
wait_for [ -b "${drive}p2" ]
printf 'label: dos\nsize=16M, type=ef\n' | sfdisk -q "$drive"
expect_fail "${disk}p1 is an EFI system partition" bash /scripts/vfio-bind.sh "$BDF"

# With multipath the namespace is the subsystem's.
BDF=$(nvme_functions | tail -n 1)
drive=/dev/$(basename "$(ls -d /sys/class/nvme-subsystem/*/nvme*n1 | tail -n 1)")
hold "$drive"
hold "/dev/ng${drive#/dev/nvme}"
refused "$drive is open in process" "/dev/ng${drive#/dev/nvme} is open in process"
end_holders
bind "$BDF"
[ "$(driver_of)" = vfio-pci ]
