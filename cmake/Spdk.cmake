# SPDX-License-Identifier: BSD-3-Clause
#
# SPDK, if pkg-config finds it: sets GPUNVME_HAVE_SPDK, and GPUNVME_SPDK_LIBRARIES to what the
# library then links. PKG_CONFIG_PATH names the folder of spdk_nvme.pc where SPDK is not
# installed in the system. What pkg-config finds need not link: the files of an SPDK may name
# libraries of another DPDK than the one that is there. Then GPUNVME_SPDK_LACKS says what is wrong.
option(GPUNVME_SPDK "Build the spdk backend, if SPDK is there" ON)
set(GPUNVME_HAVE_SPDK OFF)
set(GPUNVME_SPDK_LIBRARIES "")
set(GPUNVME_SPDK_LACKS "")
if(NOT GPUNVME_SPDK)
    return()
endif()
pkg_check_modules(SPDK QUIET spdk_nvme spdk_env_dpdk)
if(NOT SPDK_FOUND)
    message(STATUS "SPDK not found: the spdk backend is left out")
    return()
endif()

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

# One function of each library that is called by name. Not cached: what lacked may be installed now.
set(source ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/spdk_links.c)
file(WRITE ${source} "#include <spdk/env.h>
#include <spdk/nvme.h>
int main(void)
{
    void *volatile used[] = {(void *)spdk_env_init, (void *)spdk_nvme_connect};
    return !used[0];
}
")
try_compile(links ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/spdk_links ${source}
            CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${SPDK_INCLUDE_DIRS}"
            COMPILE_DEFINITIONS -D_GNU_SOURCE
            LINK_LIBRARIES ${GPUNVME_SPDK_LIBRARIES} pthread
            OUTPUT_VARIABLE said)
if(links)
    set(GPUNVME_HAVE_SPDK ON)
    message(STATUS "SPDK found: spdk_nvme ${SPDK_spdk_nvme_VERSION}")
    return()
endif()
set(GPUNVME_SPDK_LIBRARIES "")
unset(SPDK_FOUND CACHE) # to be looked for again, when CMake runs again
# The first line that says what is wrong, in letters that a C string has room for.
string(REGEX MATCH "(cannot find|undefined reference to|undefined symbol|unable to find|fatal error)[^\n]*"
       said "${said}")
string(REGEX REPLACE "[^A-Za-z0-9_.:/+ -]" "" said "${said}")
string(SUBSTRING "${said}" 0 100 said)
set(GPUNVME_SPDK_LACKS "SPDK ${SPDK_spdk_nvme_VERSION}, as pkg-config finds it, does not link")
if(said)
    string(APPEND GPUNVME_SPDK_LACKS " (${said})")
endif()
message(WARNING "${GPUNVME_SPDK_LACKS}: the spdk backend is left out. "
                "Is its DPDK another than the one that is installed?")
