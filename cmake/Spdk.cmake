# SPDX-License-Identifier: BSD-3-Clause
#
# SPDK, if pkg-config finds it: sets GPUNVME_HAVE_SPDK, and GPUNVME_SPDK_LIBRARIES to what the
# library then links. PKG_CONFIG_PATH names the folder of spdk_nvme.pc where SPDK is not
# installed in the system.
option(GPUNVME_SPDK "Build the spdk backend, if SPDK is there" ON)
set(GPUNVME_HAVE_SPDK OFF)
set(GPUNVME_SPDK_LIBRARIES "")
if(NOT GPUNVME_SPDK)
    return()
endif()
pkg_check_modules(SPDK QUIET spdk_nvme spdk_env_dpdk)
if(NOT SPDK_FOUND)
    message(STATUS "SPDK not found: the spdk backend is left out")
    return()
endif()
set(GPUNVME_HAVE_SPDK ON)
message(STATUS "SPDK found: spdk_nvme ${SPDK_spdk_nvme_VERSION}")

# Its transports and DPDK's drivers register themselves when they are loaded and nobody calls them
# by name: the linker must keep all of them, of shared libraries and of static ones. In one word,
# since CMake may put words of a link line in another order.
list(FILTER SPDK_LINK_LIBRARIES INCLUDE REGEX "spdk|rte_")
list(JOIN SPDK_LINK_LIBRARIES "," libraries)
if("${SPDK_LINK_LIBRARIES}" MATCHES "libspdk_nvme\\.a")
    pkg_check_modules(SPDK_SYS QUIET spdk_syslibs)
    list(REMOVE_ITEM SPDK_SYS_LIBRARIES vfio-user) # of its server, which is not used here
    list(TRANSFORM SPDK_SYS_LIBRARIES PREPEND "-l")
    set(GPUNVME_SPDK_LIBRARIES "-Wl,--push-state,--whole-archive,${libraries},--pop-state"
                               ${SPDK_SYS_LIBRARIES})
else()
    # Once more in the plain form, from which CMake takes where they are found when a program runs.
    set(GPUNVME_SPDK_LIBRARIES "-Wl,--push-state,--no-as-needed,${libraries},--pop-state"
                               ${SPDK_LINK_LIBRARIES})
endif()
