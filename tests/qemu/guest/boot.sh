#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Boots a guest that runs one scenario with an NVMe controller of QEMU's, by software emulation.
#
#   boot.sh SCENARIO [OPTION]...
#     --build FOLDER     where this project is built (build/release)
#     --kernel FOLDER    as kernel.sh takes it
#     --program FILE     one more program for the guest's /bin; may be given again
#     --module NAME|FILE one more kernel module; may be given again
#     --timeout SECONDS  the guest's time (as the scenario says, else 120)
#     --boot SECONDS     how long its kernel may take until the scenario begins (120)
#     --verbose          show the console whatever happens
#
# The scenario's exit status comes back as boot.sh's own: 0, 77 (skipped) or another; the console
# is shown when it is another. 124 is a guest that ran out of time.
#
# Once in some hundred boots an emulated kernel stands still before its first process. That says
# nothing of this project, none of which ran by then: the registers that it stood at are shown, and
# the guest is booted again, at most twice.
#
# Lines of the scenario that begin so are meant for boot.sh; each may be given several times:
#   # MODULES: nvme uio          kernel modules that the scenario loads by modprobe
#   # EXTRA-MODULES: kmod/x.ko   modules built out of tree, by path in the build folder
#   # PROGRAMS: tests/x          programs besides gpunvme, by path in the build folder
#   # TOOLS: mke2fs              programs of this machine; without one the scenario is skipped
#   # FILES: scripts/pci.sh      files of this project, put at the same path from the guest's /
#   # PERL: Fcntl                this machine's perl with these modules
#   # NVME: nvme,drive=d0,…      controllers, as for -device; default: one, id nv0, on drive d0
#   # DRIVE: 64M                 the size of drive d0, a raw file full of zeroes (256M)
#   # IOMMU: yes                 the machine has one
#   # MEMORY: 512                the guest's memory in MiB (384)
#   # SECONDS: 900             the guest's time (400)
#   # CPUS: 2                    its processors (1)
#   # QEMU: -device x …          further options, before those of NVME; @DIR@ is a folder for files
#   # QMP: WORDS => {"execute":…}   sent to QEMU when the scenario calls `tell_host WORDS`
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)
build=$top/build/release
kernel=
deadline=
boot_deadline=120
verbose=
packed=()

[ $# -ge 1 ] || { sed -n '5,14s/^# \{0,1\}//p' "$0"; exit 2; }
scenario=$1
shift
while [ $# -gt 0 ]; do
    case $1 in
        --build) build=$2; shift ;;
        --kernel) kernel=$2; shift ;;
        --program | --module) packed+=("$1" "$2"); shift ;;
        --timeout) deadline=$2; shift ;;
        --boot) boot_deadline=$2; shift ;;
        --verbose) verbose=1 ;;
        *) echo "boot.sh: unknown option $1" >&2; exit 2 ;;
    esac
    shift
done

skip() {
    echo "SKIP: $*"
    exit 77
}

# directive NAME [DEFAULT]: what the scenario says, all lines of it.
directive() {
    local text
    text=$(sed -n "s/^# $1:[[:space:]]*//p" "$scenario")
    echo "${text:-${2:-}}"
}

[ -r "$scenario" ] || { echo "boot.sh: there is no $scenario" >&2; exit 2; }
deadline=${deadline:-$(directive SECONDS 400)}
[ "$(uname -m)" = x86_64 ] || skip "the guests are for x86-64"
for tool in qemu-system-x86_64 busybox cpio depmod modprobe; do
    command -v "$tool" >/dev/null || PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null ||
        skip "$tool is not here (scripts/install-deps.sh test)"
done
PATH=$PATH:/usr/sbin:/sbin
if ldd "$(command -v busybox)" >/dev/null 2>&1; then
    skip "busybox is not static (busybox-static is)"
fi
kernel_says=$("$here/kernel.sh" ${kernel:+"$kernel"}) || {
    status=$?
    echo "$kernel_says"
    exit "$status"
}
kernel=$kernel_says

dir=$(mktemp -d)
qemu_pid=
talker_pid=
finish() {
    [ -z "$talker_pid" ] || kill "$talker_pid" 2>/dev/null || true
    [ -z "$qemu_pid" ] || kill "$qemu_pid" 2>/dev/null || true
    rm -rf "$dir"
}
trap finish EXIT
trap 'exit 143' TERM INT HUP

# --- what goes into the guest -------------------------------------------------------------------

[ ! -x "$build/cli/gpunvme" ] || packed+=(--program "$build/cli/gpunvme")
for program in $(directive PROGRAMS); do
    packed+=(--program "$build/$program")
done
for tool in $(directive TOOLS); do
    file=$(command -v "$tool") || skip "$tool is not here"
    packed+=(--program "$file")
done
for file in $(directive FILES); do
    packed+=(--file "$top/$file" "/$file")
done
read -r -a modules <<<"$(directive PERL)"
if [ ${#modules[@]} -gt 0 ]; then
    # shellcheck disable=SC2016 # Perl's variables
    files=$(perl -e 'eval "require $_" || die $@ for @ARGV;
        print "$_\n" for values %INC, @DynaLoader::dl_shared_objects' "${modules[@]}") ||
        skip "perl is not here, or lacks one of: ${modules[*]}"
    packed+=(--program "$(command -v perl)")
    for file in $files; do
        packed+=(--file "$file" "$file")
    done
fi
for module in $(directive MODULES); do
    packed+=(--module "$module")
done
for module in $(directive EXTRA-MODULES); do
    packed+=(--module "$build/$module")
done
"$here/initramfs.sh" "$kernel" "$scenario" "$dir/initramfs" "${packed[@]}"

# --- the machine --------------------------------------------------------------------------------

options=(
    -accel tcg,thread=multi -cpu max -smp "$(directive CPUS 1)" -m "$(directive MEMORY 384)"
    -machine q35,graphics=off,usb=off,smbus=off,sata=off,vmport=off
    -no-user-config -nodefaults -display none -no-reboot -net none
    -device isa-debug-exit,iobase=0xf4,iosize=4
    -serial "file:$dir/console"
    -chardev "pipe,id=qmp,path=$dir/qmp" -mon chardev=qmp,mode=control
    -kernel "$kernel/vmlinux" -initrd "$dir/initramfs"
)
append="console=ttyS0 quiet panic=-1 nokaslr mitigations=off tsc=reliable no_timer_check"
append+=" random.trust_cpu=on cryptomgr.notests audit=0 i8042.noaux i8042.nokbd"
append+=" raid=noautodetect"
if [ "$(directive IOMMU)" = yes ]; then
    options+=(-device "intel-iommu,intremap=on,caching-mode=off")
    append+=" intel_iommu=on"
fi
truncate -s "$(directive DRIVE 256M)" "$dir/drive.img"
options+=(-drive "if=none,id=d0,format=raw,cache=unsafe,discard=unmap,file=$dir/drive.img")
while read -r line; do
    read -r -a words <<<"${line//@DIR@/$dir}"
    [ ${#words[@]} -eq 0 ] || options+=("${words[@]}")
done < <(directive QEMU)
while read -r device; do
    options+=(-device "$device")
done < <(directive NVME "nvme,id=nv0,drive=d0,serial=GUEST0001")
options+=(-append "$append")

# --- QMP: two named pipes, of which bash needs no client ----------------------------------------

mkfifo "$dir/qmp.in" "$dir/qmp.out"
exec 7<>"$dir/qmp.in" 8<>"$dir/qmp.out" # open for both, so that nobody waits for the other

# Sends each command of "# QMP:" once its words are on the console, in the order given.
talk() {
    local line words
    while read -r line; do
        words=${line%% => *}
        until grep -qaF "HOST: $words" "$dir/console" 2>/dev/null; do
            sleep 0.1
        done
        echo "${line#* => }" >&7
    done < <(directive QMP | sed '/^$/d')
}
: >"$dir/console"
talk &
talker_pid=$!

# --- run ----------------------------------------------------------------------------------------

# Starts QEMU and waits until the scenario begins or QEMU ends; 1 where neither comes to pass.
boot() {
    local give_up=$((SECONDS + boot_deadline))
    timeout -k 2 "$deadline" qemu-system-x86_64 "${options[@]}" <&- >"$dir/qemu.log" 2>&1 &
    qemu_pid=$!
    echo '{"execute":"qmp_capabilities"}' >&7
    until grep -qaF 'guest: ' "$dir/console"; do
        kill -0 "$qemu_pid" 2>/dev/null || return 0
        [ "$SECONDS" -lt "$give_up" ] || return 1
        sleep 0.1
    done
}

# Ends a guest that did not get so far, and shows where it was.
give_up_boot() {
    local ask='{"execute":"human-monitor-command","arguments":{"command-line":"info registers -a"}}'
    echo "boot.sh: the guest's kernel did not get to its first process within $boot_deadline s"
    echo "$ask" >&7
    timeout 5 grep -m 1 'CPU#' <&8 | sed 's/\\r\\n/\n/g' | grep -v '^[XY]MM\|^FPR\|^DR' || true
    kill "$qemu_pid" 2>/dev/null || true
    wait "$qemu_pid" || true
    : >"$dir/console"
}

code=124
for _ in 1 2 3; do
    if boot; then
        code=0
        wait "$qemu_pid" || code=$?
        break
    fi
    give_up_boot
done
qemu_pid=
case $code in
    124 | 137) status=124; echo "boot.sh: the guest ran out of time" ;;
    1) status=1; echo "boot.sh: QEMU failed" ;;
    0) status=1; echo "boot.sh: the guest crashed or never reached the end" ;;
    *) status=$(((code - 1) / 2 - 1)) ;; # isa-debug-exit: as init says
esac
if { [ "$status" -ne 0 ] && [ "$status" -ne 77 ]; } || [ -n "$verbose" ]; then
    cat "$dir/qemu.log"
    tr -d '\r' <"$dir/console"
    timeout 0.2 cat <&8 || true
else
    tr -d '\r' <"$dir/console" | grep -a -e '^SKIP:' -e '^guest:' || true
fi
exit "$status"
