#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A signal in the middle of anything: exit code 130, in time, nothing left behind. Each command is
# given a device that would keep it busy for minutes.
. "$(dirname "$0")/lib.sh"

# A signal must not come before the program watches for it: it would hit the shell's copy of itself,
# which would remove the working directory, or a program that has no answer to it yet. From then on
# SIGTERM, signal 15, is blocked: a thread takes it.
until_it_watches() {
    local blocked
    for _ in $(seq 12000); do
        if [ "$(cat /proc/$pid/comm 2>/dev/null)" = gpunvme ]; then
            blocked=$(awk '/^SigBlk:/ { print $2 }' /proc/$pid/status 2>/dev/null)
            [ $((0x${blocked:-0} >> 14 & 1)) -eq 0 ] || return
        fi
        sleep 0.005
    done
    fail "the program does not watch for signals"
}

# Starts the program; `env` because a shell gives its background jobs a SIGINT that is ignored,
# and the program respects that.
start() {
    env --default-signal=INT "$program" "$@" >out 2>err &
    pid=$!
    until_it_watches
}

# interrupt DELAY SIGNAL command…
interrupt() {
    local delay=$1 signal=$2
    shift 2
    start "$@"
    sleep "$delay"
    kill -"$signal" $pid 2>/dev/null
    end
}

slow=size=1G,bandwidth=1M
random_file in.bin 30000000

promise "bench ends on SIGINT"
interrupt 0.4 INT bench sim:size=64M
expect 130 "interrupted"
interrupt 0.4 INT bench sim:size=64M,latency=100s -Q 3
expect 130 "interrupted"
interrupt 0.4 INT bench sim:$slow --verify
expect 130 "interrupted"

promise "read ends on SIGINT, SIGTERM and SIGHUP"
for signal in INT TERM HUP; do
    interrupt 0.4 $signal read sim:$slow -o out.bin
    expect 130 "interrupted"
done

promise "write ends on SIGINT, and while it waits for a silent pipe"
interrupt 0.4 INT write sim:$slow -i in.bin -q
expect 130 "interrupted"
mkfifo pipe
sleep 30 >pipe &
writer=$!
interrupt 0.4 INT write sim:size=64M -i pipe -q
expect 130 "interrupted"
kill $writer 2>/dev/null

promise "read ends while nobody opens or empties its pipe"
interrupt 0.4 INT read sim:size=64M -o pipe
expect 130 "interrupted"
sleep 30 <pipe &
reader=$!
interrupt 0.4 INT read sim:size=64M -o pipe
expect 130 "interrupted"
kill $reader 2>/dev/null

promise "a bring-up that takes minutes ends"
interrupt 0.4 INT identify sim:ready=100s,timeout=127500ms
expect 130 "interrupted"
interrupt 0.4 INT identify sim:fault=lose:identify
expect 130 "interrupted"
check test "$(grep -c 'broke the specification' err)" -eq 0

promise "quickstart ends on SIGINT at any moment and leaves nothing behind"
for delay in 0 0.01 0.03 0.06 0.1 0.2 0.4 0.8; do
    interrupt $delay INT quickstart --size 300M --uri sim:bandwidth=100M --image made.img
    expect 130
    nothing_left
    check test ! -e made.img
done

promise "a second signal does not wait, and removes the files all the same"
start quickstart in.bin --uri sim:shutdown=100s,timeout=127500ms --image made.img
sleep 0.5
kill -INT $pid
sleep 0.5
kill -INT $pid 2>/dev/null
end
expect 130
nothing_left
check test ! -e made.img

promise "a signal that comes to the process and to its group at once, as from timeout, is one"
for _ in 1 2 3 4; do
    rm -f child
    # shellcheck disable=SC2016
    env --default-signal=INT timeout --preserve-status 600 \
        bash -c 'echo $$ >child; exec "$0" "$@"' "$program" bench sim:size=64M -t 300s -q >out 2>err &
    sender=$!
    until [ -s child ]; do
        sleep 0.005
    done
    pid=$(cat child)
    until_it_watches
    kill -TERM $sender # which sends it on, twice
    wait $sender
    code=$?
    expect 130 "interrupted"
done

promise "a bring-up that is interrupted is no violation of the specification"
interrupt 0.3 INT identify sim:ready=100s,timeout=127500ms
expect 130 "interrupted"
check test "$(grep -c 'broke the specification' err)" -eq 0

promise "an image that was interrupted is whole and usable"
truncate -s 64M disk.img
start write sim:image=disk.img,bandwidth=10M -i in.bin -q
for _ in $(seq 1200); do # it is writing when the file has the mark of an image
    [ "$(stat -c %s disk.img)" -eq 67108864 ] || break
    sleep 0.05
done
kill -INT $pid
end
expect 130
check test "$(stat -c %s disk.img)" -eq $((67108864 + 4096))
gpunvme identify sim:image=disk.img
expect 0

promise "a signal that the parent has us ignore is ignored"
(
    trap '' INT
    "$program" bench sim:size=64M -t 500ms -q >out 2>err &
    pid=$!
    until_it_watches
    sleep 0.2
    kill -INT $pid
    wait $pid
)
code=$?
expect 0

finish
