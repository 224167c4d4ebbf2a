#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Help, version, spelling, and that manual and completion know every command and option.
. "$(dirname "$0")/lib.sh"

commands="quickstart info identify dump-bar0 read write bench store topology check-p2p sim stripe weights data tier ops"
verbs="profiles image check"
manual=$source_dir/cli/gpunvme.1
completion=$source_dir/cli/gpunvme.bash

for command in $commands; do
    promise "$command --help teaches with examples, in 80 columns"
    gpunvme "$command" --help
    expect 0
    expect_out 'Examples:'
    expect_out "gpunvme $command"
    check test "$(awk '{ if (length > n) n = length } END { print n }' out)" -le 80
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

    promise "every option of $command is in the manual and the completion"
    "$program" "$command" --help >out
    for option in $(grep -oE '^ .*--[a-z-]+' out | grep -oE -- '--[a-z-]+' | sort -u); do
        check grep -qF -- "${option//-/\\-}" "$manual"
        check grep -qF -- "$option" "$completion"
    done

    promise "$command refuses an option that it does not have"
    gpunvme "$command" --no-such-option
    expect 2
done

for verb in $verbs; do
    promise "sim $verb --help teaches"
    gpunvme sim "$verb" --help
    expect 0
    expect_out 'gpunvme '
done

for verb in create show; do
    promise "stripe $verb --help teaches, and its options are in the manual and the completion"
    gpunvme stripe "$verb" --help
    expect 0
    expect_out "gpunvme stripe $verb"
    check test "$(awk '{ if (length > n) n = length } END { print n }' out)" -le 80
    for option in $(grep -oE '^ .*--[a-z-]+' out | grep -oE -- '--[a-z-]+' | sort -u); do
        check grep -qF -- "${option//-/\\-}" "$manual"
        check grep -qF -- "$option" "$completion"
    done
done

for verb in ls load verify bench convert; do
    promise "weights $verb --help teaches, and its options are in the manual and the completion"
    gpunvme weights "$verb" --help
    expect 0
    expect_out "gpunvme weights $verb"
    check test "$(awk '{ if (length > n) n = length } END { print n }' out)" -le 80
    for option in $(grep -oE '^ .*--[a-z-]+' out | grep -oE -- '--[a-z-]+' | sort -u); do
        check grep -qF -- "${option//-/\\-}" "$manual"
        check grep -qF -- "$option" "$completion"
    done
done

for verb in stat index verify bench; do
    promise "data $verb --help teaches, and its options are in the manual and the completion"
    gpunvme data "$verb" --help
    expect 0
    expect_out "gpunvme data $verb"
    check test "$(awk '{ if (length > n) n = length } END { print n }' out)" -le 80
    for option in $(grep -oE '^ .*--[a-z-]+' out | grep -oE -- '--[a-z-]+' | sort -u); do
        check grep -qF -- "${option//-/\\-}" "$manual"
        check grep -qF -- "$option" "$completion"
    done
done

for verb in create status ls stat get put rm migrate scrub rebuild configure serve; do
    promise "tier $verb --help teaches, and its options are in the manual and the completion"
    gpunvme tier "$verb" --help
    expect 0
    expect_out "gpunvme tier $verb"
    check test "$(awk '{ if (length > n) n = length } END { print n }' out)" -le 80
    for option in $(grep -oE '^ .*--[a-z-]+' out | grep -oE -- '--[a-z-]+' | sort -u); do
        check grep -qF -- "${option//-/\\-}" "$manual"
        check grep -qF -- "$option" "$completion"
    done
done

for verb in list bench check; do
    promise "ops $verb --help teaches, and its options are in the manual and the completion"
    gpunvme ops "$verb" --help
    expect 0
    expect_out "gpunvme ops $verb"
    check test "$(awk '{ if (length > n) n = length } END { print n }' out)" -le 80
    for option in $(grep -oE '^ .*--[a-z-]+' out | grep -oE -- '--[a-z-]+' | sort -u); do
        check grep -qF -- "${option//-/\\-}" "$manual"
        check grep -qF -- "$option" "$completion"
    done
done

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
check test "$(complete_with ops bench --dtype bf)" = bf16
check test "$(complete_with help quick)" = quickstart

finish
