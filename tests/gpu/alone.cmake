# SPDX-License-Identifier: BSD-3-Clause
#
# Read by ctest when it begins: tests that have nothing to do with a GPU where there is none, but
# else need it for themselves, because kernels of theirs poll. A build does not know where its tests
# will be run. Those that are not built are no error here.
if(EXISTS /dev/nvidiactl OR EXISTS /dev/dxg)
    set_tests_properties(test_nvme_slow_gpu test_nvme_gpu PROPERTIES RUN_SERIAL ON)
endif()
