#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# gpunvme sim: profiles, images, URIs.
. "$(dirname "$0")/lib.sh"

promise "all profiles are shown"
gpunvme sim profiles
expect 0
for name in unlimited p5800x consumer-pcie4 datacenter-pcie5; do
    expect_out "^$name\$"
done
gpunvme sim profiles --json
expect 0
expect_json

promise "an image is made sparse, with the size and 4 KiB for its mark"
gpunvme sim image disk.img --size 1G
expect 0
expect_out "1 GiB \\(1073741824 bytes\\)"
check test "$(stat -c %s disk.img)" -eq 1073745920
check test "$(stat -c %b disk.img)" -lt 2048

promise "an image that exists is checked and left alone"
printf data | dd of=disk.img conv=notrunc status=none
gpunvme sim image disk.img --size 1G --json
expect 0
expect_json
check test "$(head -c 4 disk.img)" = data

promise "an image of another size is refused, and stays as it is"
gpunvme sim image disk.img --size 2G
expect 1 GPUNVME_ERR_IMAGE_SIZE
check test "$(stat -c %s disk.img)" -eq 1073745920

promise "nonsense is refused as usage"
gpunvme sim image new.img
expect 2 "--size"
gpunvme sim image new.img --size 0
expect 2 "0 bytes"
gpunvme sim image new.img --size 1Q
expect 2 "unknown unit"
gpunvme sim image
expect 2 "PATH"
check test ! -e new.img

promise "an image in a directory that does not exist says so"
gpunvme sim image nowhere/new.img --size 1M
expect 1 GPUNVME_ERR_NOT_FOUND

promise "check tells what a URI means"
gpunvme sim check sim:size=1G,block=4096,profile=p5800x,latency=20us,fault=lose:nth=3
expect 0
expect_out 'block size +4096 bytes'
expect_out 'read 20 us'
expect_out 'lose:nth=3'
gpunvme sim check sim:size=1G,ns,size=2G --json
expect 0
expect_json

promise "check tells which engine serves the queues, and that its namespaces are in GPU memory"
gpunvme sim check sim:engine=gpu
expect 0
expect_out '^  engine +gpu: a kernel on the current GPU$'
expect_out '^  bytes kept in +GPU memory$'
gpunvme sim check sim:engine=gpu,gpu=1
expect 0
expect_out '^  engine +gpu: a kernel on GPU 1$'
gpunvme sim check sim:engine=gpu,gpu=1 --json
expect 0
expect_json
expect_out '"engine": "gpu"'
expect_out '"gpu": 1'
gpunvme sim check sim:
expect 0
expect_out '^  engine +cpu: threads of this process$'
expect_out '^  bytes kept in +memory$'

promise "check does not make or open an image"
gpunvme sim check sim:image=other.img,size=1M
expect 0
check test ! -e other.img

promise "an unknown parameter is answered with the nearest known one"
gpunvme sim check sim:size=1G,latensy=5us
expect 2 "did you mean 'latency'?"
gpunvme identify sim:imag=disk.img
expect 2 "did you mean 'image'?"
expect 2 GPUNVME_ERR_URI_PARAM
gpunvme sim check sim:profile=p5800
expect 2 "did you mean 'p5800x'?"

promise "a malformed URI is a usage error that says where"
gpunvme sim check sim:size=abc
expect 2 "size"
gpunvme sim check nonsense
expect 2 GPUNVME_ERR_URI
gpunvme identify nonsense:
expect 2 GPUNVME_ERR_URI
gpunvme sim check sim:fault=explode
expect 1 "explode"

finish
