#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Installs a build into an empty folder, and builds and runs a program against what lies there:
# once with pkg-config, once with CMake's find_package.
#
#   check.sh BUILD_DIRECTORY       (CC and CMAKE name the compiler and CMake)
set -euo pipefail

build=$1
consumer=$(cd "$(dirname "$0")/consumer" && pwd)
CC=${CC:-cc}
CMAKE=${CMAKE:-cmake}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
prefix=$dir/prefix

"$CMAKE" --install "$build" --prefix "$prefix" >"$dir/install.log"
# The library lies in lib, lib64 or lib/<triplet>, as the system has it.
pc=$(find "$prefix" -name gpunvme.pc)
lib=$(dirname "$(dirname "$pc")")

echo "with pkg-config"
export PKG_CONFIG_PATH=${pc%/*}${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
read -ra flags <<<"$(pkg-config --cflags --libs gpunvme)"
"$CC" -Wall -Werror "$consumer/main.c" -o "$dir/with-pkg-config" "${flags[@]}"
export LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
"$dir/with-pkg-config"
read -ra ops_flags <<<"$(pkg-config --cflags --libs gpunvme_ops)"
"$CC" -Wall -Werror "$consumer/ops.c" -o "$dir/ops-with-pkg-config" "${ops_flags[@]}"
"$dir/ops-with-pkg-config"

echo "the example of README.md"
awk '/^```c$/ { code = 1; text = ""; next }
     /^```$/ { if (code && text ~ /int main/) printf "%s", text; code = 0 }
     code { text = text $0 "\n" }' "$consumer/../../../README.md" >"$dir/readme.c" # whole programs
"$CC" -Wall -Werror "$dir/readme.c" -o "$dir/readme" "${flags[@]}"
"$dir/readme"

echo "with find_package"
"$CMAKE" -S "$consumer" -B "$dir/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_C_COMPILER="$CC" >"$dir/configure.log" || { cat "$dir/configure.log"; exit 1; }
"$CMAKE" --build "$dir/build" >"$dir/build.log" || { cat "$dir/build.log"; exit 1; }
"$dir/build/consumer"
"$dir/build/ops"

if [ -x "$prefix/bin/gpunvme" ]; then
    echo "the command"
    "$prefix/bin/gpunvme" --version
fi
