# SPDX-License-Identifier: BSD-3-Clause
#
# What scenarios use. It is read before the scenario by the same shell (busybox's, with -eux), so
# a command that fails ends the scenario.

fail() {
    echo "FAILED: $*"
    exit 1
}

skip() {
    echo "SKIP: $*"
    exit 77
}

# expect_fail TEXT COMMAND...: the command fails, and its message has TEXT in it.
expect_fail() {
    local text="$1"
    shift
    if "$@" >/tmp/expect.out 2>&1; then
        cat /tmp/expect.out
        fail "this should have failed: $*"
    fi
    cat /tmp/expect.out
    grep -qF -e "$text" /tmp/expect.out || fail "the message does not say \"$text\""
}

# wait_for COMMAND...: until it succeeds, two minutes at most: the host may have much else to do.
wait_for() {
    local tries=1200
    set +x
    while ! "$@" >/tmp/wait.out 2>&1; do
        tries=$((tries - 1))
        if [ $tries -le 0 ]; then
            cat /tmp/wait.out
            fail "never came true: $*"
        fi
        sleep 0.1
    done
    set -x
}

# nvme_functions: the addresses of all NVMe functions, one a line.
nvme_functions() {
    local f
    set +x
    for f in /sys/bus/pci/devices/*; do
        if [ "$(cat "$f/class")" = 0x010802 ]; then
            echo "${f##*/}"
        fi
    done
    set -x
}

# driver_of [BDF]: the name of its driver, or nothing.
driver_of() {
    local link="/sys/bus/pci/devices/${1:-$BDF}/driver"
    [ ! -e "$link" ] || basename "$(readlink "$link")"
}

# unbind [BDF]: from whatever driver it has.
unbind() {
    local f="${1:-$BDF}"
    [ ! -e "/sys/bus/pci/devices/$f/driver" ] ||
        echo "$f" >"/sys/bus/pci/devices/$f/driver/unbind"
}

# bind_to DRIVER [BDF]: loads the driver, and gives it the function.
bind_to() {
    local f="${2:-$BDF}"
    modprobe "$1"
    if [ "$(driver_of "$f")" != "$1" ]; then
        unbind "$f"
        echo "$1" >"/sys/bus/pci/devices/$f/driver_override"
        echo "$f" >/sys/bus/pci/drivers_probe
        [ "$(driver_of "$f")" = "$1" ] || fail "$f could not be bound to $1"
    fi
}

# kernel_drive [BDF]: binds to the kernel's nvme driver and prints the first block device.
kernel_drive() {
    local f="${1:-$BDF}"
    bind_to nvme "$f" >&2
    wait_for eval "ls -d /sys/bus/pci/devices/$f/nvme/nvme*/nvme*n*" >&2
    echo "/dev/$(basename "$(ls -d "/sys/bus/pci/devices/$f"/nvme/nvme*/nvme*n* | head -n 1)")"
}

# hugepages N: reserves N pages of 2 MiB.
hugepages() {
    echo "$1" >/proc/sys/vm/nr_hugepages
    [ "$(cat /proc/sys/vm/nr_hugepages)" = "$1" ] || fail "there is no room for $1 huge pages"
}

# as_user COMMAND...: as somebody who is not root.
as_user() {
    mkdir -p /etc
    echo "root:x:0:0::/:/bin/sh" >/etc/passwd
    echo "user:x:1000:1000::/:/bin/sh" >>/etc/passwd
    su -s /bin/sh user -c "$*"
}

# random_bytes N: on standard output.
random_bytes() {
    head -c "$1" /dev/urandom
}

# tell_host WORDS: a line that boot.sh waits for, as in "# QMP: WORDS => {...}".
tell_host() {
    echo "HOST: $*"
}

# masters_bus [BDF]: the function may reach memory (bit 2 of the command register).
masters_bus() {
    local low
    low=$(dd if="/sys/bus/pci/devices/${1:-$BDF}/config" bs=1 skip=4 count=1 2>/dev/null |
        od -An -tu1)
    [ $((low & 4)) -ne 0 ]
}

# all_huge_pages_free: nobody has any of those that were reserved.
all_huge_pages_free() {
    [ "$(sed -n 's/^HugePages_Total: *//p' /proc/meminfo)" = \
        "$(sed -n 's/^HugePages_Free: *//p' /proc/meminfo)" ]
}

# no_guard: the process that guards the controller has ended.
no_guard() {
    ! cat /proc/[0-9]*/comm 2>/dev/null | grep -q gpunvme-guard
}

BDF=$(nvme_functions | head -n 1)
