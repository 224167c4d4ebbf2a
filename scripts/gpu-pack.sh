# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What scripts/gpu-check.sh takes along to a machine without network, and makes usable there. To be
# sourced. A packed folder has
#
#   usr/          of Debian's packages: liburing, jansson, SQLite, cmocka, pkgconf
#   built.tar.xz  with --built: programs and lists of tests of a build, and libraries that they need
#   python.tar.xz with --python: the Python package
#   fio.tar.xz    fio and its libraries, where it is installed
#   cufile/       with --cufile: libcufile
#
# die() is the caller's.

# pack DIR BUILD-DIR SITE CUFILE: the last three may be empty; CUFILE is "pip", a wheel or a library.
pack() {
    local dir
    mkdir -p "$1" || die "$1: cannot be made"
    dir=$(cd "$1" && pwd)
    [ "$dir" != / ] || die "--pack: not into the root"
    pack_debs "$dir"
    pack_fio "$dir"
    [ -z "$2" ] || pack_build "$2" "$dir"
    [ -z "$3" ] || tar -C "$3" -cJf "$dir/python.tar.xz" . || die "$3: cannot be packed"
    [ -z "$4" ] || pack_cufile "$4" "$dir"
    du -sh "$dir"/*
    echo "packed into $dir: set GPUNVME_DEPS_DIR to it on the other machine"
}

pack_debs() {
    local debs deb
    debs=$(mktemp -d) || die "no temporary folder"
    # apt-get fetches as another user where it can, who must be able to write there
    chmod 777 "$debs"
    (cd "$debs" && apt-get download liburing-dev liburing2 libjansson-dev libjansson4 libcmocka-dev libcmocka0 \
        libsqlite3-dev libsqlite3-0 pkgconf pkgconf-bin libpkgconf3) || die "apt-get download failed"
    for deb in "$debs"/*.deb; do
        [ -e "$deb" ] || continue
        dpkg -x "$deb" "$1" || die "$deb cannot be unpacked"
    done
    rm -rf "$debs"
}

# The C library and the loader are the other machine's own; all else it may lack.
pack_libraries() { # BUILD-DIR TO
    built_programs "$1" | (cd "$1" && pack_libraries_of "$2" "$1")
}

# pack_libraries_of TO [BUT-IN]: those of the programs that are named on standard input.
pack_libraries_of() {
    local library
    mkdir -p "$1"
    xargs -d '\n' ldd 2>/dev/null |
        sed -n 's/^.* => \(\/[^ ]*\) .*/\1/p' | sort -u | while read -r library; do
        case ${library##*/} in
            libc.so.*|libm.so.*|libdl.so.*|librt.so.*|libpthread.so.*|ld-linux*) ;;
            *) case $library in "${2:-/-}"/*) ;; *) cp -L "$library" "$1" ;; esac ;;
        esac
    done
}

pack_fio() { # DIR
    local fio stage
    fio=$(command -v fio) || { echo "fio is not installed: left out"; return; }
    stage=$(mktemp -d) || die "no temporary folder"
    cp -L "$fio" "$stage/fio"
    echo "$fio" | pack_libraries_of "$stage/lib"
    tar -C "$stage" -cf - . | xz -6 -T0 >"$1/fio.tar.xz" || die "fio.tar.xz cannot be made"
    rm -rf "$stage"
}

built_programs() { # BUILD-DIR: their paths in it
    # Not each build has all of these.
    (cd "$1" && find ab bench cli examples tests -type f \( -perm -u+x -o -name '*.so' \) \
        ! -path '*/CMakeFiles/*' ! -path 'tests/install/*' 2>/dev/null) || true
}

# Programs without symbols, and ctest's lists, in which @BUILD@ and @ROOT@ stand for the folders.
pack_build() { # BUILD-DIR DIR
    local build source stage file
    build=$(cd "$1" && pwd) || die "--built: $1 is not there"
    [ -f "$build/CMakeCache.txt" ] || die "--built: $1 is no folder of a build"
    source=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$build/CMakeCache.txt")
    stage=$(mktemp -d) || die "no temporary folder"
    built_programs "$build" | (cd "$build" && xargs -d '\n' cp --parents -p -t "$stage") ||
        die "the programs of $build cannot be copied"
    find "$stage" -type f -exec strip {} + 2>/dev/null
    (cd "$build" && find . -name CTestTestfile.cmake) | while read -r file; do
        mkdir -p "$stage/$(dirname "$file")"
        sed -e '/^#/d' -e 's/ _BACKTRACE_TRIPLES "[^"]*"//' -e "s#$build#@BUILD@#g" \
            -e "s#$source#@ROOT@#g" "$build/$file" >"$stage/$file"
    done
    pack_libraries "$build" "$stage/lib"
    # Some programs know where others were built.
    printf '%s\n' "$build" >"$stage/built-in"
    { git -C "$source" describe --always --dirty --abbrev=12 2>/dev/null || echo unknown; } \
        >"$stage/commit"
    tar -C "$stage" -cf - . | xz -9 -T0 >"$2/built.tar.xz" || die "built.tar.xz cannot be made"
    rm -rf "$stage"
}

pack_cufile() { # pip|WHEEL|LIBRARY DIR
    local from=$1 wheels
    mkdir -p "$2/cufile"
    case $from in
        pip)
            wheels=$(mktemp -d) || die "no temporary folder"
            python3 -m pip download --quiet --no-deps --only-binary=:all: -d "$wheels" \
                nvidia-cufile || die "pip download nvidia-cufile failed"
            from=$(find "$wheels" -name '*.whl' | head -n 1)
            ;;&
        pip|*.whl)
            python3 - "$from" "$2/cufile" <<'PYTHON' || die "$from has no libcufile.so.0"
import os, sys, zipfile

wheel = zipfile.ZipFile(sys.argv[1])
names = [n for n in wheel.namelist() if os.path.basename(n).startswith("libcufile.so")]
for name in names:
    with open(os.path.join(sys.argv[2], os.path.basename(name)), "wb") as f:
        f.write(wheel.read(name))
sys.exit(not names)
PYTHON
            [ -z "${wheels:-}" ] || rm -rf "$wheels"
            ;;
        *) cp -L "$from" "$2/cufile/libcufile.so.0" || die "$from: cannot be copied" ;;
    esac
}

# --- on the other machine ---

# unpack_build DEPS BUILD ROOT: built.tar.xz into BUILD, if that has not been done.
unpack_build() {
    local sum file was
    sum=$(sha256sum <"$1/built.tar.xz")
    if [ "$(cat "$2/unpacked" 2>/dev/null)" != "$sum" ]; then
        rm -rf "$2"
        mkdir -p "$2" || die "$2: cannot be made"
        unpack_xz "$1/built.tar.xz" "$2" ||
            die "$1/built.tar.xz cannot be unpacked: neither xz nor Python's lzma?"
        find "$2" -name CTestTestfile.cmake -exec sed -i -e "s#@BUILD@#$2#g" -e "s#@ROOT@#$3#g" {} +
        printf '%s\n' "$sum" >"$2/unpacked"
    fi
    # What this machine has is as good, and newer ones are for other programs, too.
    mkdir -p "$2/lib-lacking"
    for file in "$2"/lib/*; do
        ldconfig_knows "${file##*/}" || ln -sf "$file" "$2/lib-lacking/"
    done
    export LD_LIBRARY_PATH=$2/lib-lacking${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    was=$(cat "$2/built-in")
    if [ ! -e "$was" ]; then
        mkdir -p "$(dirname "$was")" && ln -s "$2" "$was" ||
            echo "note: no link $was -> $2: tests that load stand-ins will fail"
    fi
}

ldconfig_knows() { # SONAME
    PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep -qF "	$1 "
}

# use_fio DEPS BUILD: sets $GPUNVME_FIO, where this machine has none and one was packed.
use_fio() {
    if command -v fio >/dev/null || [ ! -e "$1/fio.tar.xz" ]; then
        return
    fi
    mkdir -p "$2/fio" && unpack_xz "$1/fio.tar.xz" "$2/fio" || return
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$2/fio/lib" "$2/fio/fio" >"$2/fio/run"
    chmod +x "$2/fio/run"
    export GPUNVME_FIO=$2/fio/run
}

# Not every machine has xz; Python has it built in.
unpack_xz() { # FILE FOLDER
    tar -C "$2" -xJf "$1" 2>/dev/null || python3 -c 'import sys, tarfile
tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$1" "$2"
}

# use_debs DEPS BUILD: the .pc files name the folder /usr.
use_debs() {
    local lib pc
    lib=$(dirname "$(find "$1/usr/lib" -name liburing.so 2>/dev/null | head -n 1)")
    [ -d "$lib/pkgconfig" ] || die "GPUNVME_DEPS_DIR: $1 was not filled by --pack"
    mkdir -p "$2/pkgconfig"
    for pc in "$lib"/pkgconfig/*.pc; do
        sed "s#/usr\b#$1/usr#g" "$pc" >"$2/pkgconfig/${pc##*/}"
    done
    export PKG_CONFIG_PATH=$2/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
    export LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    command -v pkg-config >/dev/null || export PATH=$PATH:$1/usr/bin
}
