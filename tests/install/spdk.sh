#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# SPDK is used where it links, and left out, with what lacks, where pkg-config finds one that does
# not: cmake/Spdk.cmake with an SPDK that is a few lines of C.
#
#   spdk.sh SOURCE      CMAKE and CC are taken from the environment
set -euo pipefail

source=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

mkdir -p spdk project
echo 'int spdk_env_init(void *opts);' >spdk/env.h
echo 'void *spdk_nvme_connect(void *id, void *opts, unsigned long size);' >spdk/nvme.h
cat >all.c <<'END'
#include "spdk/env.h"
#include "spdk/nvme.h"
int spdk_env_init(void *opts) { return !opts; }
void *spdk_nvme_connect(void *id, void *opts, unsigned long size) { return size ? id : opts; }
END
"$CC" -shared -fPIC -o libspdk_nvme.so all.c

cat >project/CMakeLists.txt <<END
cmake_minimum_required(VERSION 3.18)
project(uses_spdk C)
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
include($source/cmake/Spdk.cmake)
message(STATUS "have \${GPUNVME_HAVE_SPDK}, libraries '\${GPUNVME_SPDK_LIBRARIES}', lacks '\${GPUNVME_SPDK_LACKS}'")
END

# An SPDK whose files name these libraries; what the module makes of it.
configure() {
    local name
    for name in spdk_nvme spdk_env_dpdk; do
        printf 'Name: %s\nDescription: none\nVersion: 1.2\nCflags: -I%s\nLibs: -L%s %s\n' \
            "$name" "$folder" "$folder" "$*" >"$name.pc"
    done
    PKG_CONFIG_PATH=$folder "$CMAKE" -S project -B build >log 2>&1 || {
        cat log
        exit 1
    }
}

expect() {
    grep -q -- "$1" log || {
        echo "no \"$1\" in:"
        cat log
        exit 1
    }
}

configure -lspdk_nvme -lrte_that_is_not_there
expect "have OFF, libraries '', lacks 'SPDK 1.2, as pkg-config finds it, does not link (cannot find"
expect "rte_that_is_not_there"
expect "CMake Warning"

# The whole build has the reason where `gpunvme info` takes it from.
PKG_CONFIG_PATH=$folder${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH} "$CMAKE" -S "$source" -B whole -G Ninja \
    -DCMAKE_C_COMPILER="$CC" -DGPUNVME_CUDA=OFF -DGPUNVME_BUILD_TESTS=OFF -DGPUNVME_BUILD_BENCH=OFF \
    -DGPUNVME_BUILD_CLI=OFF -DGPUNVME_OPENMP=OFF >log 2>&1 || { cat log; exit 1; }
"$CMAKE" --build whole --target CMakeFiles/gpunvme.dir/src/storage/spdk/none.c.o >log 2>&1 ||
    { cat log; exit 1; }
cp whole/CMakeFiles/gpunvme.dir/src/storage/spdk/none.c.o log
expect "built without SPDK: SPDK 1.2, as pkg-config finds it, does not link (cannot find"

# In the same build folder: once it links it is taken.
configure -lspdk_nvme
expect "have ON, libraries '.*libspdk_nvme"
expect "lacks ''"

# A library that is there, but is not what it should be.
echo 'int spdk_env_init(void *opts);int spdk_env_init(void *opts) { return !opts; }' >all.c
"$CC" -shared -fPIC -o libspdk_nvme.so all.c
configure -lspdk_nvme
expect "have OFF, libraries '', lacks '.*undefined .*spdk_nvme_connect"
