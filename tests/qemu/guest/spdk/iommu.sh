# SPDX-License-Identifier: BSD-3-Clause
#
# The spdk backend on a drive behind an IOMMU, without huge pages; what is wrong is told.
# MODULES: vfio-pci vfio_iommu_type1 nvme
# PROGRAMS: tests/qemu/guest/spdk_guest
# IOMMU: yes
# QEMU: -global intel-iommu.aw-bits=48
# MEMORY: 1024
# CPUS: 2

export OPENSSL_CONF=/tmp/openssl.cnf # SPDK initialises OpenSSL, which wants one
touch "$OPENSSL_CONF"
mkdir -p /var/tmp /var/run # where SPDK locks drives
modprobe vfio_iommu_type1
bind_to nvme
expect_fail "is it bound to vfio-pci" spdk_guest "spdk:$BDF" 1
bind_to vfio-pci
spdk_guest "spdk:$BDF/1" 600
expect_fail "no active namespace 9" spdk_guest "spdk:$BDF/9" 1
