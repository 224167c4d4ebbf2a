# SPDX-License-Identifier: BSD-3-Clause
#
# The spdk backend with huge pages, behind an IOMMU of 39 bits.
# MODULES: vfio-pci vfio_iommu_type1
# PROGRAMS: tests/qemu/guest/spdk_guest
# IOMMU: yes
# MEMORY: 1536
# CPUS: 2

export OPENSSL_CONF=/tmp/openssl.cnf # SPDK initialises OpenSSL, which wants one
touch "$OPENSSL_CONF"
mkdir -p /var/tmp /var/run # where SPDK locks drives
modprobe vfio_iommu_type1
bind_to vfio-pci
echo 256 >/proc/sys/vm/nr_hugepages
mount -t hugetlbfs hugetlbfs /dev/hugepages
spdk_guest "spdk:$BDF?threads=2,depth=16" 600
