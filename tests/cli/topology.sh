#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
#
# gpunvme topology on a machine that is written down in XML, with a tree like /sys beside it.
. "$(dirname "$0")/lib.sh"
xml=$source_dir/tests/cli/data/two_sockets.xml
# Two sockets: on the first a switch with a drive and a GPU, and a drive at a root port of its own;
# on the second a GPU. (hwloc itself reads no comments in XML.)

if [ "${CLI_TEST_HWLOC:-1}" != 1 ]; then
    promise "a build without hwloc says so"
    gpunvme topology
    expect 1 "built without hwloc"
    skip "the rest: built without hwloc"
    finish
fi

drive=sys/bus/pci/devices/0000:03:00.0
mkdir -p $drive sys/drivers/vfio-pci sys/groups/17
ln -s ../../../../drivers/vfio-pci $drive/driver
ln -s ../../../../groups/17 $drive/iommu_group
echo "8.0 GT/s PCIe" >$drive/current_link_speed
echo "16.0 GT/s PCIe" >$drive/max_link_speed
echo 2 >$drive/current_link_width
echo 4 >$drive/max_link_width

promise "the tree has what is on the way to drives and GPUs, and nothing else"
gpunvme topology --xml "$xml" --root .
expect 0
expect_out '^  Package 0'
expect_out 'host bridge 0000:\[00-1f\]'
expect_out 'root port 0000:00:01.0'
expect_out 'switch port 0000:02:00.0'
expect_out 'drive 0000:03:00.0  144d:a824'
expect_out 'GPU 0000:81:00.0  10de:2335'
check test "$(grep -c '00:1f.0' out)" -eq 0

promise "sysfs gives driver, group and link, and a slow link is told"
expect_out 'node 0, driver vfio-pci, IOMMU group 17, 8.0 GT/s PCIe x2 \(can do 16.0 GT/s PCIe x4\)'
expect_out 'node 1, no driver, no IOMMU group$'

promise "each drive and GPU meet where they do"
expect_out 'drive 0000:03:00.0, GPU 0000:04:00.0: the same switch \(0000:01:00.0\)'
expect_out 'drive 0000:05:00.0, GPU 0000:04:00.0: the same host bridge'
expect_out 'drive 0000:03:00.0, GPU 0000:81:00.0: different sockets'
check test "$(grep -c '  drive .*, GPU' out)" -eq 4

promise "--json has the same"
gpunvme topology --xml "$xml" --root . --json
expect 0
expect_json
expect_out '"meet": "switch"'
expect_out '"meet": "host bridge"'
expect_out '"meet": "machine"'
expect_out '"max_link_width": 4'

promise "--svg draws a picture that is XML whatever the names are"
gpunvme topology --xml "$xml" --root . --svg picture.svg
expect 0
check grep -q 'Fast &amp; &lt;small&gt; SSD' picture.svg
check test "$(grep -c '<rect x' picture.svg)" -eq "$(grep -c '</text>$' <(grep -A1 '<rect x' picture.svg | grep bold))"
if command -v python3 >found; then
    check python3 -c 'import sys, xml.dom.minidom as m; m.parse(sys.argv[1])' picture.svg
else
    skip "whether the picture is well-formed: there is no python3"
fi
gpunvme topology --xml "$xml" --svg nowhere/picture.svg
expect 1 "nowhere/picture.svg"

promise "what is no topology is told"
echo nonsense >bad.xml
gpunvme topology --xml bad.xml
check test $code -eq 1
gpunvme topology --xml nowhere.xml
check test $code -eq 1

promise "this machine can be looked at, whatever it has"
gpunvme topology
expect 0
gpunvme topology --json
expect 0
expect_json
finish
