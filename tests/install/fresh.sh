#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The first steps on a fresh machine: README.md's build can be configured without what only the
# tests need, and quickstart.sh leaves the folders of other builds alone.
#
#   fresh.sh SOURCE      CMAKE and CC are taken from the environment
set -euo pipefail

source=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

fail() {
    echo "$*"
    exit 1
}

echo "the build that README.md documents needs no cmocka"
# A pkg-config that knows everything but cmocka.
cat >pkg-config <<'END'
#!/bin/sh
case " $* " in *cmocka*) exit 1 ;; esac
exec "$REAL_PKG_CONFIG" "$@"
END
chmod +x pkg-config
REAL_PKG_CONFIG=$(command -v pkg-config)
export REAL_PKG_CONFIG
commands=$(awk '/^## Build it yourself/ { here = 1 } here && /^```$/ { exit } here' "$source/README.md")
preset=$(sed -n 's/^cmake --preset \([a-z]*\)$/\1/p' <<<"$commands")
[ -n "$preset" ] || fail "README.md has no line 'cmake --preset NAME' in 'Build it yourself'"
grep -q "^cmake --build --preset $preset\$" <<<"$commands" || fail "README.md builds another preset"
grep -q "^cmake --install build/$preset " <<<"$commands" || fail "README.md installs another build"
(cd "$source" && PKG_CONFIG=$folder/pkg-config "$CMAKE" --preset "$preset" -B "$folder/build" \
    -DCMAKE_C_COMPILER="$CC" -DGPUNVME_CUDA=OFF) >log 2>&1 || fail "$(tail -n 20 log)"
if ninja -C build -t targets all | grep -q test_queue; then
    fail "preset $preset builds the tests"
fi

echo "quickstart.sh builds in a folder of its own"
# With a cmake that notes its arguments and "builds" a command.
mkdir -p tree/scripts tree/build/release bin
: >tree/CMakeLists.txt
cp "$source"/scripts/quickstart.sh tree/scripts
printf '#!/bin/sh\n' >tree/scripts/install-deps.sh
chmod +x tree/scripts/install-deps.sh
cat >bin/cmake <<'END'
#!/bin/sh
echo "$*" >>"$NOTES"
[ "$1" = --build ] || exit 0
mkdir -p "$2/cli"
printf '#!/bin/sh\necho "$0 $*"\n' >"$2/cli/gpunvme"
chmod +x "$2/cli/gpunvme"
END
chmod +x bin/cmake
printf '#!/bin/sh\nexit 9\n' >bin/nvidia-smi
chmod +x bin/nvidia-smi
NOTES=$folder/notes PATH=$folder/bin:$PATH tree/scripts/quickstart.sh some.file >out
grep -q "tree/build/quickstart/cli/gpunvme quickstart some.file" out || fail "ran $(cat out)"
grep -q -- "-DGPUNVME_USE_SIM=ON" notes || fail "did not ask for the software controller: $(cat notes)"
grep -q -- "-DGPUNVME_CUDA=OFF" notes || fail "built CUDA code without a GPU: $(cat notes)"
[ -z "$(ls -A tree/build/release)" ] || fail "wrote to build/release: $(ls -A tree/build/release)"

echo "quickstart.sh builds CUDA code for the machine's GPUs only"
printf '#!/bin/sh\nprintf "9.0\\n8.6\\n12.0\\n7.5\\n"\n' >bin/nvidia-smi
: >notes
NOTES=$folder/notes PATH=$folder/bin:$PATH tree/scripts/quickstart.sh >out
grep -q -- "-DGPUNVME_CUDA=AUTO -DGPUNVME_CUDA_ARCHITECTURES=80;90a\$" notes || fail "asked for $(cat notes)"
