#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# gpunvme sim --listen: sockets made, replaced, refused and removed.
. "$(dirname "$0")/lib.sh"

promise "it serves until SIGTERM, removes its socket and reports"
serve a -- --listen "$work/a" sim:size=1M
stop TERM
expect 0
expect_out "^Listening at $work/a: sim:size=1M"
expect_out "^$work/a: 0 admin commands, .* 0 violations"
check [ ! -e a ]

promise "several controllers have a socket each, without a URI too"
serve a b -- --listen "$work/a" --listen "$work/b" sim:size=1M --json
stop TERM
expect 0
expect_json
check [ ! -e a ]
check [ ! -e b ]

promise "a socket that a killed server has left is replaced"
serve a -- --listen "$work/a" sim:size=1M
kill -KILL $pid
wait $pid 2>/dev/null
check [ -S a ]
serve a -- --listen "$work/a" sim:size=1M
promise "a socket in use is refused, and stays"
gpunvme sim --listen "$work/a" sim:size=1M
expect 1 "in use"
check [ -S a ]
"$program" sim --help >/dev/null
kill -TERM $pid
wait $pid
check [ ! -e a ]

promise "a file that is no socket is refused, and stays"
echo precious >file
gpunvme sim --listen "$work/file" sim:size=1M
expect 1 "no socket"
check [ "$(cat file)" = precious ]

promise "a failure of one controller leaves no socket of another"
gpunvme sim --listen "$work/a" --listen "$work/none/b" sim:size=1M
expect 1
check [ ! -e a ]

promise "more URIs than sockets are an error of usage"
gpunvme sim --listen "$work/a" sim: sim:
expect 2 "2 URIs for 1 sockets"

promise "an option is not taken for the socket's path"
for option in --help -x; do
    gpunvme sim --listen "$option"
    expect 2 "not the option $option"
    check [ ! -e "./$option" ]
done

promise "the URI may stand before the socket"
gpunvme sim sim:size=1M --listen "$work/none/b"
expect 1 "none/b"

finish
