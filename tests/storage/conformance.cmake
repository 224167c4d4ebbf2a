# The same tests for each backend: one program, a ctest entry for each row of store_rig.c.
add_executable(test_store_conformance test_store_conformance.c store_rig.c store_rig_walk.c
               ${PROJECT_SOURCE_DIR}/tests/stand_in.c)
target_include_directories(test_store_conformance PRIVATE ${PROJECT_SOURCE_DIR}/src
                           ${PROJECT_SOURCE_DIR}/tests)
target_compile_definitions(test_store_conformance PRIVATE _GNU_SOURCE)
target_link_libraries(test_store_conformance PRIVATE gpunvme PkgConfig::CMOCKA PkgConfig::LIBURING)
gpunvme_spare_loops(test_store_conformance)
# conformance_environment(test row): what a row needs, wherever its test runs.
function(conformance_environment test row)
    if(TARGET gpunvme_cli)
        set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT
                     "GPUNVME_TEST_CLI=$<TARGET_FILE:gpunvme_cli>")
    endif()
    if(TARGET fake_cufile AND row MATCHES "cufile")
        set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT
                     "GPUNVME_TEST_CUFILE=$<TARGET_FILE:fake_cufile>")
    endif()
endfunction()

# Their limit is above that of the walks (RIG_DEADLINE_NS).
foreach(row file file_threads1 file_chunk4k file_uring file_uring_direct file_direct file_no_uring
        shm shm_uring sim sim_4k sim_image vfio_user
        stripe stripe_mixed cufile spdk)
    if(row MATCHES "file|shm")
        set(label unit)
    else()
        set(label sim)
    endif()
    gpunvme_add_test(test_store_conformance_${row} ${label} 120 test_store_conformance ${row})
    conformance_environment(test_store_conformance_${row} ${row})
endforeach()

# They take all memory of the GPU, which other tests would miss.
foreach(row file file_direct shm sim vfio_user stripe_mixed)
    gpunvme_add_test(test_store_full_gpu_${row} gpu 120 test_store_conformance ${row} nogpumem)
    conformance_environment(test_store_full_gpu_${row} ${row})
    set_tests_properties(test_store_full_gpu_${row} PROPERTIES RUN_SERIAL TRUE)
endforeach()

# All rows in one program, on one engine.
gpunvme_test(NAME test_store_many SOURCES test_store_many.c store_rig.c store_rig_walk.c LABEL sim
             TIMEOUT 240)
foreach(row vfio_user cufile) # all that any row needs
    conformance_environment(test_store_many ${row})
endforeach()
