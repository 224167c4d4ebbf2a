# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What vfio-bind.sh and vfio-unbind.sh share: a PCI function in sysfs, who uses the drive behind
# it, and writes that say what they are. Sourced; the caller has set `set -euo pipefail` and me=.
#
# For tests, GPUNVME_SYSFS, GPUNVME_PROC, GPUNVME_DEV and GPUNVME_RUN put other folders in the place
# of /sys, /proc, /dev and /run/gpunvme, and GPUNVME_KERNEL names a program that plays the kernel: it
# is called after each write with the file and the value, or with "modprobe" and the module.
PATH=$PATH:/usr/sbin:/sbin # modprobe, blkid and zpool, which not every path has
sysfs=${GPUNVME_SYSFS:-/sys}
proc=${GPUNVME_PROC:-/proc}
dev=${GPUNVME_DEV:-/dev}
# shellcheck disable=SC2034 # used by whoever sources this
run=${GPUNVME_RUN:-/run/gpunvme}
kernel=""
[ "$sysfs" = /sys ] || kernel=${GPUNVME_KERNEL:-}
dry_run=no
force=no
deadline_s=30 # of one step: the kernel may wait for whoever has the device open

: "${me:=pci.sh}" # who is speaking
say() { printf '%s: %s\n' "$me" "$*"; }
die() {
    told=yes
    printf '%s: %s\n' "$me" "$*" >&2
    exit 1
}

told=no # why the script ends
finish() {
    local status=$?
    release
    [ $status -eq 0 ] || [ $told = yes ] ||
        printf '%s: stopped by a failure that it does not expect (%s)\n' "$me" $status >&2
}
trap finish EXIT

# "1:0.0", "01:00.0", "0000:01:00.0" as the kernel writes it, or nothing if it is no address.
normal_bdf() {
    local h='[0-9a-fA-F]'
    if [[ $1 =~ ^(($h{1,8}):)?($h{1,2}):($h{1,2})\.([0-7])$ ]]; then
        printf '%04x:%02x:%02x.%x\n' "0x${BASH_REMATCH[2]:-0}" "0x${BASH_REMATCH[3]}" \
            "0x${BASH_REMATCH[4]}" "0x${BASH_REMATCH[5]}"
    fi
}

# The name that a link points to; nothing if there is no link.
link_name() {
    local target
    [ -L "$1" ] || return 0
    target=$(readlink "$1")
    echo "${target##*/}"
}

line_of() { { read -r line <"$1" && printf '%s\n' "$line"; } 2>/dev/null || true; }

driver_of() { link_name "$sysfs/bus/pci/devices/$1/driver"; }

# put VALUE FILE: a write to sysfs, told; the kernel's own word if it refuses.
put() {
    printf '  echo "%s" > %s\n' "$1" "$2"
    [ "$dry_run" = no ] || return 0
    # shellcheck disable=SC2016 # expanded by the inner shell
    timeout "$deadline_s" bash -c 'printf "%s\n" "$1" >"$2"' put "$1" "$2" || return 1
    [ -z "$kernel" ] || "$kernel" "$2" "$1"
}

is_root() { [ -w "$sysfs/bus/pci/drivers_probe" ]; }

need_root() {
    [ "$dry_run" = yes ] || is_root ||
        die "this needs root: sudo $0 …, or --dry-run to see what it would do"
}

# Checks that $1 is an NVMe function.
need_nvme() {
    local dir=$sysfs/bus/pci/devices/$1 class
    [ -d "$dir" ] || die "there is no PCI function $1 (gpunvme topology lists the drives)"
    class=$(line_of "$dir/class")
    [ $((class)) -eq $((0x010802)) ] || die "$1 is no NVMe controller: its class is $class"
}

# "b|c MAJ:MIN NAME DIRECTORY" of each device by which a function is used: disks, partitions, and
# what takes commands or drives it (nvme0, ng0n1, its VFIO group and device, uio's, this project's
# module's). NAME is below /dev, DIRECTORY is in sysfs.
devices_of() {
    local dir=$sysfs/bus/pci/devices/$1 ctrl subsystem folder disk partition group
    for ctrl in "$dir"/nvme/nvme*; do
        # With multipath the namespace that is used belongs to the subsystem, and other
        # controllers may lead to it as well.
        for subsystem in "" "$sysfs"/class/nvme-subsystem/*; do
            folder=${subsystem:-$ctrl}
            [ -z "$subsystem" ] || [ -L "$subsystem/${ctrl##*/}" ] || continue
            for disk in "$folder"/nvme*n*; do
                device b "$disk"
                for partition in "$disk"/nvme*; do
                    [ ! -e "$partition/partition" ] || device b "$partition"
                done
            done
            for disk in "$folder" "$folder"/ng*; do
                device c "$disk"
            done
        done
    done
    group=$(link_name "$dir/iommu_group")
    for folder in "$dir"/{uio/uio*,misc/*,vfio-dev/vfio*} \
        "$sysfs"/class/vfio/{,noiommu-}"${group:-none}"; do
        device c "$folder"
    done
}

device() { # TYPE DIRECTORY
    local name=""
    [ -e "$2/dev" ] || return 0
    [ ! -e "$2/uevent" ] || name=$(<"$2/uevent")
    [[ $name =~ DEVNAME=([^[:space:]]+) ]] && name=${BASH_REMATCH[1]} || name=${2##*/}
    echo "$1 $(line_of "$2/dev") $name $2"
}

# "MAJ:MIN SOURCE WHERE" of every mount in every mount namespace that a process is in. Processes may
# end meanwhile, hence the silence.
list_mounts() {
    { cat "$proc"/self/mountinfo "$proc"/[0-9]*/mountinfo 2>/dev/null || true; } | awk '{
        for (i = 7; i < NF; i++)
            if ($i == "-") { print $3, $(i + 2), $5; break }
    }' | sort -u
}

# "PATH USE" of what the kernel uses without claiming it: each PATH names a device that was opened.
list_kernel_users() {
    local file dir path
    while read -r path _; do
        echo "$path is used as swap: swapoff $path"
    done < <(sed 1d "$proc/swaps")
    for file in "$sysfs"/block/loop*/loop/backing_file; do
        dir=${file%/loop/backing_file}
        [ ! -e "$file" ] || echo "$(line_of "$file") backs ${dir##*/}: losetup -d /dev/${dir##*/}"
    done
    for file in "$sysfs"/kernel/config/nvmet/subsystems/*/{namespaces/*,passthru}/device_path \
        "$sysfs"/kernel/config/target/core/*/*/udev_path; do
        dir=${file%/*}
        if [ -e "$file" ] && [ "$(line_of "$dir/enable")" = 1 ]; then
            echo "$(line_of "$file") is exported: echo 0 > $dir/enable"
        fi
    done
}

# same_device PATH NAME MAJ:MIN: the path leads to that device.
same_device() {
    local number path
    path=$(readlink -f -- "$1") || path=$1
    [ "${path##*/}" != "$2" ] || return 0
    number=$(stat -L -c '0x%t 0x%T' -- "$1" 2>/dev/null) || return 1 # there is no such file
    [ "$((${number% *})):$((${number#* }))" = "$3" ]
}

# What sysfs and procfs say of the uses of a device, as in devices_of().
uses_of() {
    local type=$1 number=$2 name=$3 dir=$4 other source where link
    while read -r source where; do
        [ -z "$source" ] || ! same_device "$source" "$name" "$number" || echo "$name $where"
    done <<<"$kernel_users"
    [ "$type" = b ] || return 0
    while read -r other source where; do
        # btrfs and ZFS mount under a device number of their own.
        [ "$other" = "$number" ] || { [[ $other == 0:* && $source == /* ]] &&
            same_device "$source" "$name" "$number"; } || continue
        case $where in
            / | /boot | /boot/* | /usr) echo "$name is mounted on $where: this is the boot drive" ;;
            *) echo "$name is mounted on $where: umount $where" ;;
        esac
    done <<<"$mounts"
    for link in "$dir"/holders/*; do
        [ -e "$link" ] || [ -L "$link" ] || continue
        where=$(line_of "$link/dm/name")
        case ${link##*/} in
            md*) echo "$name is part of ${link##*/}: mdadm --stop /dev/${link##*/}" ;;
            *) echo "$name is part of ${link##*/}${where:+ ($where)}: stop that (LVM: vgchange -an," \
                "LUKS: cryptsetup close, other maps: dmsetup remove)" ;;
        esac
    done
    for link in "$sysfs"/fs/btrfs/*/devices/"$name"; do
        [ ! -e "$link" ] && [ ! -L "$link" ] ||
            echo "$name is part of a mounted btrfs file system: umount it"
    done
    if [ -d "$sysfs/module/zfs" ] && timeout 20 zpool status -LP |
        awk -v d="/dev/$name" '$1 == d { found = 1 } END { exit !found }'; then
        echo "$name is part of a ZFS pool: zpool export it"
    fi
}

# What is on block device NAME: "doubt …" if it speaks against taking it, else "note …".
contents_of() {
    local name=$1 found status=0 key value type="" usage=""
    found=$(timeout 20 blkid -p -o export "$dev/$name") || status=$?
    case $status in
        0) ;;
        2) return 0 ;; # nothing that blkid knows
        *)
            echo "doubt what $name holds could not be found out (blkid failed with $status)"
            return 0
            ;;
    esac
    while IFS='=' read -r key value; do
        case $key=$value in
            TYPE=*) type=$value ;;
            USAGE=*) usage=$value ;;
            PART_ENTRY_TYPE=0xef | PART_ENTRY_TYPE=c12a7328-f81f-11d2-ba4b-00a0c93ec93b)
                echo "doubt $name is an EFI system partition" ;;
            PART_ENTRY_TYPE=21686148-6449-6e6f-744e-656564454649)
                echo "doubt $name is a BIOS boot partition" ;;
            PART_ENTRY_TYPE=bc13c2ff-59e6-4262-a352-b275fd6f7172)
                echo "doubt $name is an extended boot partition" ;;
        esac
    done <<<"$found"
    case $usage/$type in
        raid/* | */*_member | */bcache) echo "doubt $name is an inactive member of a set ($type)" ;;
        */?*) echo "note $name holds $type, and nothing uses it" ;;
    esac
}

# look BDF: finds out who uses a function. Fills
#   in_use   a line for each use: the function must not be taken
#   doubts   what else speaks against taking it, or could not be found out: --force overrides these
# and prints what else is on the drive. Its disks stay claimed until `release`, so that nobody mounts
# one meanwhile. The claims decide: they fail for whatever in the kernel has claimed a drive, also if
# no file in /sys or /proc tells of it. The rest names the user and what to do, and finds the users
# that claim nothing: processes, targets, loop devices.
look() {
    local devices mounts kernel_users type number name dir line word rest
    local ask=() busy=() disks=() pipe
    in_use=() doubts=()
    devices=$(devices_of "$1" | sort -u)
    mounts=$(list_mounts)
    kernel_users=$(list_kernel_users)
    while read -r type number name dir; do
        [ -n "$name" ] || continue
        mapfile -t -O "${#in_use[@]}" in_use < <(uses_of "$type" "$number" "$name" "$dir")
        ask+=("$type" "$number" "/dev/$name")
        case $type$name in
            b*)
                disks+=("$name")
                [ -e "$dir/partition" ] || ask+=(claim "$dev/$name")
                ;;
            cvfio/devices/*) ;;
            cvfio/*) [ ! -e "$dev/$name" ] || ask+=(try "$dev/$name") ;;
        esac
    done <<<"$devices"
    if [ ${#disks[@]} -gt 0 ] && [ -d "$sysfs/module/nvmet" ] && [ ! -d "$sysfs/kernel/config/nvmet" ]; then
        doubts+=("what the NVMe target exports can't be seen: mount -t configfs none /sys/kernel/config")
    fi
    if ! is_root; then
        say "only root can see which processes have the drive open, and what is on it" >&2
        return 0
    fi
    for line in "$sysfs/bus/pci/devices/$1"/resource[0-9]*; do
        ask+=(f "$line" "${line##*/} of $1")
    done
    command -v perl >/dev/null ||
        die "perl is not here, and this script can't find out without it who has $1 open: install" \
            "it (Debian: perl-base, Fedora: perl-interpreter). Nothing was changed"
    exec {pipe}< <(exec perl "$(dirname "${BASH_SOURCE[0]}")/holders.pl" "$proc" "${ask[@]}")
    holders=$!
    word=""
    while [ "$word" != end ]; do
        read -r -t "$deadline_s" -u "$pipe" word rest ||
            die "holders.pl did not find out who has $1 open. Nothing was changed"
        case $word in
            busy) busy+=("$rest (this must be opened exclusively; nothing tells who has it)") ;;
            held)
                case $rest in
                    *"(gpunvme-guard)") in_use+=("$rest, which ends when its program has") ;;
                    *) in_use+=("$rest: end that first") ;;
                esac
                ;;
            denied) doubts+=("$rest") ;;
        esac
    done
    exec {pipe}<&-
    [ ${#in_use[@]} -gt 0 ] || in_use=("${busy[@]}") # else it is explained already
    [ ${#in_use[@]} -eq 0 ] || return 0
    for name in "${disks[@]}"; do
        while read -r word rest; do
            case $word in
                doubt) doubts+=("$rest") ;;
                note) say "$rest" ;;
            esac
        done < <(contents_of "$name")
    done
}

holders="" # the process that has the claims
release() {
    [ -n "$holders" ] || return 0
    local tries=50
    kill "$holders" 2>/dev/null || true # it may have failed
    while [ $tries -gt 0 ] && kill -0 "$holders" 2>/dev/null; do
        sleep 0.1
        tries=$((tries - 1))
    done
    holders=""
}

# Ends the script if function $1 is used, or by what was found must not be taken without --force.
refuse_if_used() {
    look "$1"
    if [ ${#in_use[@]} -gt 0 ]; then
        printf '%s\n' "${in_use[@]}" >&2
        die "$1 is in use and stays where it is: nothing was changed"
    fi
    if [ ${#doubts[@]} -gt 0 ]; then
        printf '%s\n' "${doubts[@]}" >&2
        [ "$force" = yes ] || die "nothing was changed: --force takes $1 all the same"
    fi
}

# " (MODEL, serial SERIAL)" as the kernel's driver knows them, or nothing.
identity_of() {
    local ctrl
    for ctrl in "$sysfs/bus/pci/devices/$1"/nvme/nvme*; do
        [ ! -e "$ctrl/model" ] || echo " ($(line_of "$ctrl/model"), serial $(line_of "$ctrl/serial"))"
    done
}

# Functions of the same IOMMU group that keep it from programs: a bridge or an idle one does not.
group_others() {
    local dir=$sysfs/bus/pci/devices/$1 other driver
    for other in "$dir"/iommu_group/devices/*; do
        [ "$(basename "$other")" != "$1" ] || continue
        driver=$(link_name "$other/driver")
        case $driver in
            "" | vfio-pci | pci-stub | pcieport) ;;
            *) echo "$(basename "$other") (bound to $driver)" ;;
        esac
    done
}

# Makes sure that driver $1 is there.
need_driver() {
    [ ! -d "$sysfs/bus/pci/drivers/$1" ] || return 0
    echo "  modprobe $1"
    [ "$dry_run" = no ] || return 0
    if [ -n "$kernel" ]; then
        "$kernel" modprobe "$1"
    elif [ "$sysfs" = /sys ]; then
        timeout "$deadline_s" modprobe "$1" || true
    fi
    [ -d "$sysfs/bus/pci/drivers/$1" ] || die "there is no driver $1 (modprobe $1 did not help)"
}

# rebind BDF DRIVER OVERRIDE: gives the function to DRIVER ("none": to nobody) and leaves
# driver_override as OVERRIDE says ("" for none). Fails with what the function is bound to instead.
rebind() {
    local dir=$sysfs/bus/pci/devices/$1 old
    old=$(driver_of "$1")
    put "$3" "$dir/driver_override" || return 1
    if [ -n "$old" ] && [ "$old" != "$2" ]; then
        put "$1" "$sysfs/bus/pci/drivers/$old/unbind" || return 1
    fi
    release # what was claimed is gone, and would keep its name from coming back
    if [ "$2" != none ] && [ "$old" != "$2" ]; then
        put "$1" "$sysfs/bus/pci/drivers_probe" || return 1
    fi
    [ "$dry_run" = no ] || return 0
    [ "$(driver_of "$1")" = "${2/#none/}" ]
}
