# SPDX-License-Identifier: BSD-3-Clause
#
# The shared library: the objects of the static one, showing only public names.
add_library(gpunvme_shared SHARED $<TARGET_OBJECTS:gpunvme>)
set_target_properties(gpunvme_shared PROPERTIES
    OUTPUT_NAME gpunvme
    EXPORT_NAME gpunvme
    LINKER_LANGUAGE C
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    LINK_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/gpunvme.map)
target_include_directories(gpunvme_shared INTERFACE
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_options(gpunvme_shared PRIVATE
    -Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/gpunvme.map -Wl,--no-undefined
    -Wl,-z,nodelete) # the threads that serve files stay until the process ends
target_link_libraries(gpunvme_shared PRIVATE pthread m PkgConfig::LIBURING
                      $<$<BOOL:${BLKID_FOUND}>:PkgConfig::BLKID>
                      $<$<BOOL:${JANSSON_FOUND}>:PkgConfig::JANSSON>
                      $<$<BOOL:${SQLITE_FOUND}>:PkgConfig::SQLITE> ${GPUNVME_CUDA_LIBRARIES}
                      ${GPUNVME_SPDK_LIBRARIES})
