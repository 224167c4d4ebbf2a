#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Help, version, spelling, and that manual and completion know every command and option.
. "$(dirname "$0")/lib.sh"

manual=$source_dir/cli/gpunvme.1
completion=$source_dir/cli/gpunvme.bash

# teaches WORD...: the help of a command or of its verb.
teaches() {
    local usage option

    promise "$* --help teaches with examples, in 80 columns, and breaks no example"
    gpunvme "$@" --help
    expect 0
    expect_out '^Examples?:'
    expect_out "gpunvme $*"
    check test "$(awk '{ if (length > n) n = length } END { print n }' out)" -le 80
    check test -z "$(awk '/^Examples?:/ { here = 1; next } /^$/ { here = 0 } here && !/^  /' out)"

    promise "the manual has $* with the arguments of its usage"
    usage=$(sed -n '1s/^Usage: \(.*\) \[OPTION\.\.\.\]/\1/p' out)
    [[ $usage == *" VERB"* ]] || check grep -qxF -- ".SS ${usage//-/\\-}" "$manual"

    promise "every option of $* is in the manual and the completion"
    for option in $(grep -oE '^ .*--[a-z-]+' out | grep -oE -- '--[a-z-]+' | sort -u); do
        check grep -qF -- "${option//-/\\-}" "$manual"
        check grep -qF -- "$option" "$completion"
    done
}

while read -r command verbs; do
    teaches "$command"
    gpunvme help "$command"
    expect 0
    expect_out 'Examples:'

    promise "$command is in the overview, the manual and the completion"
    gpunvme --help
    expect 0
    expect_out "^  $command  "
    for heading in .B .SS; do # the synopsis, and the description
        check grep -qE -- "^\\$heading gpunvme ${command/-/\\\\-}( |\$)" "$manual"
    done
    check grep -qw -- "$command" "$completion"

    promise "$command refuses an option that it does not have"
    gpunvme "$command" --no-such-option
    expect 2

    for verb in $verbs; do
        teaches "$command" "$verb"
    done
done <<'END'
quickstart
info
identify
dump-bar0
read
write
bench
store
topology
check-p2p
sim profiles image check
stripe create show
weights ls load verify bench convert
data stat index verify bench
tier create status ls stat get put rm migrate scrub rebuild configure serve
ops list bench check
END

promise "examples that pick a part of a document pick one that is there"
if command -v jq >/dev/null; then
    for command in dump-bar0 store; do
        gpunvme "$command" --help
        example=$(sed -n "s/^  gpunvme \($command .*sim:.*| jq .*\)/\1/p" out)
        checks=$((checks + 1))
        bash -c "'$program' $example" >"$work/out" 2>"$work/err" || fail "$example"
        check test "$(cat out)" != null
    done
else
    skip "no jq(1) to pick with"
fi

promise "the overview fits into 80 columns"
gpunvme --help
check test "$(awk '{ if (length > n) n = length } END { print n }' out)" -le 80

promise "the version is told"
gpunvme --version
expect 0
expect_out '^gpunvme [0-9]+\.[0-9]+\.[0-9]+$'
gpunvme version --json
expect 0
expect_json

promise "no command at all is a usage error with the overview"
gpunvme
expect 2 "Commands:"

promise "a misspelt command is answered with the nearest one"
gpunvme idnetify
expect 2 "did you mean 'identify'?"
gpunvme sim profils
expect 2 "did you mean 'profiles'?"
gpunvme xyzzyplugh
expect 2 "gpunvme help"

promise "the manual is a manual"
if command -v man >/dev/null; then
    check test -z "$(MANWIDTH=80 LC_ALL=C.UTF-8 man --warnings -l "$manual" 2>&1 >/dev/null)"
else
    skip "no man(1) to check the manual page with"
fi

promise "the completion is a script that completes commands, options and verbs"
complete_with() {
    (
        . "$completion"
        COMP_WORDS=(gpunvme "$@")
        COMP_CWORD=$#
        COMPREPLY=()
        _gpunvme
        printf '%s\n' "${COMPREPLY[@]}"
    )
}
check test "$(complete_with ident)" = identify
check test "$(complete_with bench --read-s)" = --read-share
check test "$(complete_with sim prof)" = profiles
check test "$(complete_with stripe cr)" = create
check test "$(complete_with weights ver)" = verify
check test "$(complete_with ops ben)" = bench
check test "$(complete_with ops bench mat)" = matmul
check test "$(complete_with ops list mat)" = matmul
check test "$(complete_with ops bench --dtype bf)" = bf16
check test "$(complete_with help quick)" = quickstart

finish
