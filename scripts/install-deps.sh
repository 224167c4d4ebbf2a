#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Installs what is missing on a Debian or Ubuntu machine, by apt-get.
#
#   scripts/install-deps.sh build    what the library and the command need
#   scripts/install-deps.sh [test]   that, and what the tests, sanitizers and checks need
#
# What is there already, from wherever it came, is left alone. Fails if something that the build
# cannot do without is still missing at the end; other tools that are missing are told.
set -euo pipefail

what=${1:-test}
case $what in
    build | test) ;;
    *) sed -n '4,10s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

have() { command -v "$1" >/dev/null 2>&1; }
tool() { PATH=$PATH:/usr/sbin:/sbin have "$1"; } # what root's path has

# Compilers write here, not to /dev/null: as root, some replace that by a file.
probe=$(mktemp)
trap 'rm -f "$probe"' EXIT

# The probes ask whether the thing works, not whether a package of that name is there.
c_compiler() { echo 'int main(void) { return 0; }' | "${CC:-cc}" -x c -o "$probe" - 2>/dev/null; }
cxx_compiler() { echo 'int main() { return 0; }' | "${CXX:-c++}" -x c++ -o "$probe" - 2>/dev/null; }
cmake_3_25() {
    have cmake || return 1
    local version
    version=$(cmake --version | sed -n '1s/.* //p')
    [ "$(printf '%s\n' 3.25 "$version" | sort -V | head -n 1)" = 3.25 ]
}
library() { have pkg-config && pkg-config --exists "$1"; }
libfuzzer() {
    echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return !d && !n; }' |
        clang -x c -fsanitize=fuzzer,address -o "$probe" - 2>/dev/null
}
clang_format_14() {
    have clang-format-14 || { have clang-format && clang-format --version | grep -q ' 14\.'; }
}
static_busybox() { have busybox && ! ldd "$(command -v busybox)" >/dev/null 2>&1; }
sbin() { PATH=$PATH:/usr/sbin:/sbin have "$1"; }
shared_library() { # grep -q would end ldconfig early, which pipefail tells
    PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null | grep "[[:space:]]$1 " >/dev/null
}
cuda() { have nvcc || [ -x /usr/local/cuda/bin/nvcc ]; }

# Fills `needed` and `wanted` with "package…: what it is" for each thing that is missing.
look() {
    needed=()
    wanted=()
    c_compiler || needed+=("gcc libc6-dev: a C compiler")
    cmake_3_25 || needed+=("cmake: CMake 3.25 or newer")
    have ninja || needed+=("ninja-build: Ninja")
    have pkg-config || needed+=("pkg-config: pkg-config")
    library liburing || needed+=("liburing-dev: liburing")
    if cuda; then
        cxx_compiler || wanted+=("g++: a C++ compiler, which nvcc needs")
    fi
    # The build does without these.
    library blkid || wanted+=("libblkid-dev: libblkid, which tells what is on a drive before it is written to")
    library jansson || wanted+=("libjansson-dev: jansson, for model weights (safetensors)")
    library sqlite3 || wanted+=("libsqlite3-dev: SQLite, for storage tiers")
    library hwloc || wanted+=("libhwloc-dev: hwloc, for gpunvme topology")
    [ "$what" = test ] || return 0
    library cmocka || needed+=("libcmocka-dev: cmocka")
    python3 -c 'import jsonschema' 2>/dev/null ||
        wanted+=("python3-jsonschema: jsonschema, by which the output of --json is checked")
    python3 -c 'import ensurepip, venv' 2>/dev/null ||
        wanted+=("python3-venv: venv and pip, by which the Python package is tested")
    libfuzzer || wanted+=("clang libclang-rt-dev: clang with libFuzzer, for scripts/fuzz.sh")
    have valgrind || wanted+=("valgrind: valgrind, which counts instructions")
    have qemu-system-x86_64 || wanted+=("qemu-system-x86: QEMU, whose NVMe controller tests/qemu drives")
    have gcovr || wanted+=("gcovr: gcovr, for scripts/coverage.sh")
    have qemu-system-x86_64 || wanted+=("qemu-system-x86: QEMU, whose NVMe controllers tests drive")
    have qemu-img || wanted+=("qemu-utils: qemu-img, which makes images for QEMU")
    static_busybox || wanted+=("busybox-static: a static busybox, for QEMU's guests")
    have cpio || wanted+=("cpio: cpio, likewise")
    sbin depmod || wanted+=("kmod: depmod and modprobe, likewise")
    have xz || wanted+=("xz-utils: xz, likewise")
    shared_library libopenblas.so.0 || wanted+=("libopenblas0-pthread: OpenBLAS, which gpunvme ops bench compares with")
    have fio || wanted+=("fio: fio, to compare speeds with")
    tool mkfs.ext4 || wanted+=("e2fsprogs: mkfs.ext4, to test that a file system is recognised")
    tool mkfs.vfat || wanted+=("dosfstools: mkfs.vfat, likewise")
    tool sfdisk || wanted+=("fdisk: sfdisk, likewise for partition tables")
    tool dmsetup || wanted+=("dmsetup: dmsetup, to test that a volume's drive stays with the kernel")
    have shellcheck || wanted+=("shellcheck: shellcheck, for the scripts")
    clang_format_14 || wanted+=("clang-format-14: clang-format 14, for scripts/format.sh")
}

packages() { printf '%s\n' "$@" | sed 's/:.*//'; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        printf 'install-deps.sh: this needs root, and there is no sudo. Run as root:\n    %s\n' "$*" >&2
        return 1
    fi
}
apt() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends "$@"; }

install_missing() {
    local names package
    apt update || echo "install-deps.sh: apt-get update failed; trying with what is known" >&2
    mapfile -t names < <(packages "${needed[@]}" | xargs -n 1)
    for package in $(packages "${wanted[@]}"); do
        # A name that this release does not have must not keep the others away.
        if apt-cache show "$package" >/dev/null 2>&1; then
            names+=("$package")
        fi
    done
    [ ${#names[@]} -eq 0 ] || apt install "${names[@]}"
}

look
if [ ${#needed[@]} -eq 0 ] && [ ${#wanted[@]} -eq 0 ]; then
    echo "install-deps.sh: nothing is missing"
    exit 0
fi
echo "install-deps.sh: missing:"
printf '%s\n' "${needed[@]}" "${wanted[@]}" | sed '/^$/d; s/^/    /'

if have apt-get; then
    install_missing || true # what matters is what is there then
else
    echo "install-deps.sh: there is no apt-get here, and this script knows no other way." >&2
    echo "Install the above by hand (the names are Debian's packages), then run this again." >&2
fi

look
[ ${#wanted[@]} -eq 0 ] || printf 'install-deps.sh: done without: %s\n' "${wanted[@]#*: }"
if [ ${#needed[@]} -gt 0 ]; then
    printf 'install-deps.sh: still missing: %s\n' "${needed[@]#*: }" >&2
    exit 1
fi
echo "install-deps.sh: done"
