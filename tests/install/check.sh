#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Installs a build into an empty folder, and builds and runs programs against what lies there: with
# pkg-config, and with CMake's find_package in projects of each language. Headers, pages, examples
# and scripts are tried where they lie.
#
#   check.sh BUILD_DIRECTORY       (CC, CXX, CUDACXX and CMAKE name the compilers and CMake;
#                                  CUDACXX is empty where the build has no CUDA)
set -euo pipefail

build=$1
consumer=$(cd "$(dirname "$0")/consumer" && pwd)
CC=${CC:-cc}
CXX=${CXX:-c++}
CUDACXX=${CUDACXX:-}
export CC CXX CUDACXX
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

echo "pkg-config's flags are those that nvcc takes, too"
nvcc_links=yes
for flag in "${flags[@]}" "${ops_flags[@]}"; do
    case $flag in
        -I* | -L* | -l*) ;;
        *spdk*) nvcc_links=no ;; # SPDK must be linked as a whole, and nvcc refuses -Wl
        *) echo "nvcc does not take $flag"; exit 1 ;;
    esac
done
if [ -n "$CUDACXX" ] && [ "$nvcc_links" = yes ]; then
    "$CUDACXX" -x cu -std=c++20 "$consumer/main.c" -o "$dir/with-nvcc" "${flags[@]}"
    "$dir/with-nvcc"
    "$CUDACXX" -x cu -std=c++20 "$consumer/ops.c" -o "$dir/ops-with-nvcc" "${ops_flags[@]}"
    "$dir/ops-with-nvcc"
fi

echo "the example of README.md"
awk '/^```c$/ { code = 1; text = ""; next }
     /^```$/ { if (code && text ~ /int main/) printf "%s", text; code = 0 }
     code { text = text $0 "\n" }' "$consumer/../../../README.md" >"$dir/readme.c" # whole programs
"$CC" -Wall -Werror "$dir/readme.c" -o "$dir/readme" "${flags[@]}"
"$dir/readme"

# try COMMAND…: what it printed is shown if it fails.
try() {
    "$@" >"$dir/log" 2>&1 || { tail -n 30 "$dir/log"; return 1; }
}

# No C++ and no OpenMP of theirs is asked of projects: the one language is what they have.
languages=(C)
if command -v "$CXX" >/dev/null; then languages+=(CXX); fi
if [ -n "$CUDACXX" ]; then languages+=(CUDA); fi
for language in "${languages[@]}"; do
    echo "with find_package, in a project of $language alone"
    try "$CMAKE" -S "$consumer" -B "$dir/$language" -G Ninja -DLANGUAGE="$language" \
        -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CUDA_ARCHITECTURES=90
    try "$CMAKE" --build "$dir/$language"
    "$dir/$language/consumer"
    "$dir/$language/ops"
done

echo "without a C++ runtime"
for program in with-pkg-config ops-with-pkg-config C/consumer C/ops prefix/bin/gpunvme; do
    if [ -e "$dir/$program" ] && readelf -d "$dir/$program" | grep 'NEEDED.*stdc++'; then
        echo "$program needs the C++ runtime"
        exit 1
    fi
done

echo "the headers, each alone"
echo 'int unused;' >"$dir/empty"
for compiler in "$CC c c11" "$CXX c++ c++17" "clang c c11" "clang++ c++ c++17"; do
    read -r program language standard <<<"$compiler"
    command -v "$program" >/dev/null || continue
    for header in "$prefix"/include/gpunvme/{*,*/*}.h "$prefix"/include/gpunvme/*.cuh; do
        try "$program" -x "$language" -std="$standard" -Wall -Wextra -Werror -fsyntax-only \
            -I"$prefix/include" -include "$header" "$dir/empty"
    done
done

echo "the pages, whose links to pages, pictures and examples lead to what is there"
pages=$prefix/share/doc/gpunvme
for page in "$pages"/{README,CONTRIBUTING,CHANGELOG}.md "$pages"/docs/*.md "$pages"/kmod/*.md; do
    while read -r link; do
        case $link in
            *.svg) ;;
            *include/* | *src/* | *tests/* | *bench/*) continue ;;
        esac
        [ -e "${page%/*}/$link" ] || { echo "$page: $link is not there"; exit 1; }
    done < <(grep -o '](\([^)#:]*\)[)#]' "$page" | sed 's/^](//; s/[)#]$//; /^$/d')
done

echo "the examples"
try "$CMAKE" -S "$pages/examples" -B "$dir/examples" -G Ninja -DCMAKE_PREFIX_PATH="$prefix"
try "$CMAKE" --build "$dir/examples"
"$dir/examples/example_store_read"
"$dir/examples/example_data_tokens"
"$dir/examples/example_matmul"

if [ -x "$prefix/bin/gpunvme" ]; then
    echo "the command, its page and the scripts"
    "$prefix/bin/gpunvme" --version
    [ -s "$prefix/share/man/man1/gpunvme.1" ]
    scripts=$prefix/share/gpunvme/scripts
    try "$scripts/quickstart.sh" --size 8K
    "$scripts/vfio-bind.sh" --help >/dev/null
    [ -r "$scripts/pci.sh" ] && [ -x "$scripts/holders.pl" ] # which it needs
    "$scripts/check-prereqs.sh" >"$dir/log" 2>&1 || [ $? = 1 ] || { cat "$dir/log"; exit 1; }
fi
