# SPDX-License-Identifier: BSD-3-Clause
#
# Where an IOMMU translates, physical addresses are not given to the controller.
# MODULES: uio_pci_generic
# IOMMU: yes

hugepages 40
expect_fail "an IOMMU translates" gpunvme identify "nvme:$BDF"
bind_to uio_pci_generic
expect_fail "an IOMMU translates" gpunvme identify "nvme:$BDF"
