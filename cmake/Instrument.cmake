# SPDX-License-Identifier: BSD-3-Clause
#
# What the presets add to every object in C: sanitizers, coverage counters, feedback for libFuzzer,
# optimisation at link time. Included before Cuda.cmake, which asks for the sanitizers.
set(GPUNVME_SANITIZE "" CACHE STRING "Sanitizers, as for -fsanitize=, or empty")
option(GPUNVME_COVERAGE "Count the lines that run (gcov)" OFF)
option(GPUNVME_FUZZ "Build the fuzz targets with libFuzzer (needs clang)" OFF)
option(GPUNVME_LTO "Optimise at link time; a static library then suits only this compiler" OFF)

if(GPUNVME_SANITIZE)
    # A report ends the test: nothing is recovered from.
    set(flags -fsanitize=${GPUNVME_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    if(CMAKE_C_COMPILER_ID STREQUAL GNU)
        # The instrumentation hides from gcc what is set; the other presets warn rightly.
        list(APPEND flags -Wno-maybe-uninitialized)
    endif()
    add_compile_options("$<$<COMPILE_LANGUAGE:C>:${flags}>")
    add_link_options(-fsanitize=${GPUNVME_SANITIZE})
endif()

if(GPUNVME_COVERAGE)
    # Several threads count in the same object.
    add_compile_options("$<$<COMPILE_LANGUAGE:C>:--coverage;-fprofile-update=atomic>")
    add_link_options(--coverage)
endif()

# gpunvme_uncounted(target…): what is not of the library, of which coverage tells.
function(gpunvme_uncounted)
    if(GPUNVME_COVERAGE)
        foreach(target IN LISTS ARGN)
            target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C>:-fno-profile-arcs>
                                   $<$<COMPILE_LANGUAGE:C>:-fno-test-coverage>)
        endforeach()
    endif()
endfunction()

# gpunvme_spare_loops(target…): loops over whole matrices and over all bytes of a file, where a check of
# each addition and a counter in each turn take minutes. AddressSanitizer and ThreadSanitizer look at
# their memory all the same.
function(gpunvme_spare_loops)
    foreach(target IN LISTS ARGN)
        if(GPUNVME_SANITIZE)
            target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C>:-O2>
                                   $<$<COMPILE_LANGUAGE:C>:-fno-sanitize=undefined>)
        endif()
        gpunvme_uncounted(${target})
    endforeach()
endfunction()

if(GPUNVME_FUZZ)
    if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "GPUNVME_FUZZ needs clang, which has libFuzzer: set CC=clang. With other "
                            "compilers the fuzz targets are built as tests all the same.")
    endif()
    add_compile_options($<$<COMPILE_LANGUAGE:C>:-fsanitize=fuzzer-no-link>)
    add_link_options(-fsanitize=fuzzer-no-link)
endif()

if(GPUNVME_LTO)
    include(CheckIPOSupported)
    check_ipo_supported(LANGUAGES C)
    set(CMAKE_INTERPROCEDURAL_OPTIMIZATION ON)
endif()
