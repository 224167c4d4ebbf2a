# SPDX-License-Identifier: BSD-3-Clause
#
# What `cmake --install` puts where: the two libraries, their headers, the command with its page and
# completion, and how others find them (pkg-config, find_package).
include(CMakePackageConfigHelpers)

set(libraries gpunvme gpunvme_ops)
if(BUILD_SHARED_LIBS)
    list(TRANSFORM libraries APPEND _shared)
endif()
install(TARGETS ${libraries} EXPORT gpunvmeTargets)
install(DIRECTORY include/gpunvme ${PROJECT_BINARY_DIR}/include/gpunvme TYPE INCLUDE
        FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh")
if(TARGET gpunvme_cli)
    install(TARGETS gpunvme_cli)
    install(FILES cli/gpunvme.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    install(FILES cli/gpunvme.bash RENAME gpunvme
            DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
endif()
# The pages, with the examples and the kernel module where their links have them; and the scripts that
# need no source tree.
install(FILES LICENSE README.md CHANGELOG.md CONTRIBUTING.md TYPE DOC)
install(DIRECTORY docs examples kmod TYPE DOC)
install(DIRECTORY bench/results/h200 DESTINATION ${CMAKE_INSTALL_DOCDIR}/bench/results
        FILES_MATCHING PATTERN "ops_*.svg") # pictures of OPERATORS
install(PROGRAMS scripts/check-prereqs.sh scripts/holders.pl scripts/pci.sh scripts/quickstart.sh
                 scripts/vfio-bind.sh scripts/vfio-unbind.sh
        DESTINATION ${CMAKE_INSTALL_DATADIR}/gpunvme/scripts)

# find_package(gpunvme) gives gpunvme::gpunvme and gpunvme::gpunvme_ops.
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gpunvme)
install(EXPORT gpunvmeTargets NAMESPACE gpunvme:: DESTINATION ${config_dir})
configure_package_config_file(cmake/gpunvmeConfig.cmake.in gpunvmeConfig.cmake
                              INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(gpunvmeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/gpunvmeConfig.cmake
              ${PROJECT_BINARY_DIR}/gpunvmeConfigVersion.cmake DESTINATION ${config_dir})

# pkg-config: a static library needs what it uses named, a shared one knows. Not -pthread, which nvcc
# refuses.
file(RELATIVE_PATH pc_to_prefix
     ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
set(pc_requires "")
set(pc_libs "-lgpunvme")
if(NOT BUILD_SHARED_LIBS)
    set(pc_requires "liburing")
    if(BLKID_FOUND)
        string(APPEND pc_requires ", blkid")
    endif()
    if(JANSSON_FOUND)
        string(APPEND pc_requires ", jansson")
    endif()
    if(SQLITE_FOUND)
        string(APPEND pc_requires ", sqlite3")
    endif()
    string(JOIN " " spdk_libs ${GPUNVME_SPDK_LIBRARIES})
    string(APPEND pc_libs " ${spdk_libs} -lpthread -lm")
    if(GPUNVME_HAVE_CUDA)
        string(APPEND pc_libs " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
    endif()
endif()
configure_file(cmake/gpunvme.pc.in gpunvme.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/gpunvme.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# The operators stand alone.
set(pc_ops_libs "-lgpunvme_ops")
if(NOT BUILD_SHARED_LIBS)
    string(APPEND pc_ops_libs " -lm")
    if(OpenMP_C_FOUND)
        list(TRANSFORM OpenMP_C_LIB_NAMES PREPEND " -l" OUTPUT_VARIABLE openmp)
        string(APPEND pc_ops_libs ${openmp})
    endif()
    if(GPUNVME_HAVE_CUDA)
        string(APPEND pc_ops_libs
               " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt -lpthread")
    endif()
endif()
configure_file(cmake/gpunvme_ops.pc.in gpunvme_ops.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/gpunvme_ops.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
