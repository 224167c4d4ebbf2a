# SPDX-License-Identifier: BSD-3-Clause
#
# Decides whether CUDA code is built. Sets GPUNVME_HAVE_CUDA, and GPUNVME_CUDA_LIBRARIES to what
# the library then links. The CUDA runtime is linked statically and looks for a driver when it is
# first called, so the same program starts on a machine without a GPU.
set(GPUNVME_CUDA AUTO CACHE STRING "CUDA code: AUTO (if nvcc works), ON (or fail), OFF")
set_property(CACHE GPUNVME_CUDA PROPERTY STRINGS AUTO ON OFF)
set(GPUNVME_CUDA_ARCHITECTURES "80;90a" CACHE STRING "GPU architectures to build for")
option(GPUNVME_CUDA_QUICK "Optimise CUDA code little, if nvcc can: for builds that no GPU runs" OFF)

set(GPUNVME_HAVE_CUDA OFF)
set(GPUNVME_CUDA_LIBRARIES "")

if(NOT GPUNVME_CUDA MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "GPUNVME_CUDA is ${GPUNVME_CUDA}: it must be AUTO, ON or OFF")
elseif(GPUNVME_CUDA STREQUAL "OFF")
    set(why "GPUNVME_CUDA is OFF")
elseif(GPUNVME_SANITIZE)
    set(why "the sanitizers do not know CUDA (GPUNVME_SANITIZE is ${GPUNVME_SANITIZE})")
else()
    include(CheckLanguage)
    if(NOT CMAKE_CUDA_COMPILER)
        # Forget an earlier "not found": CUDA may have been installed since.
        unset(CMAKE_CUDA_COMPILER CACHE)
        unset(nvcc CACHE)
        find_program(nvcc nvcc HINTS ENV CUDACXX ENV CUDA_PATH ENV CUDA_HOME
                     PATHS /usr/local/cuda PATH_SUFFIXES bin)
        mark_as_advanced(nvcc)
        if(nvcc AND NOT DEFINED ENV{CUDACXX})
            set(ENV{CUDACXX} ${nvcc})
        endif()
        check_language(CUDA)
    endif()

    if(CMAKE_CUDA_COMPILER)
        set(CMAKE_CUDA_ARCHITECTURES ${GPUNVME_CUDA_ARCHITECTURES})
        set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
        set(CMAKE_CUDA_STANDARD 17)
        enable_language(CUDA)
        find_package(CUDAToolkit)
        if(TARGET CUDA::cudart_static)
            set(GPUNVME_HAVE_CUDA ON)
            set(GPUNVME_CUDA_LIBRARIES CUDA::cudart_static)
            # Kernels are four fifths smaller when they are compressed; the driver unpacks them.
            add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall;-Xfatbin=-compress-all>")
            if(GPUNVME_CUDA_QUICK)
                include(CheckCompilerFlag)
                check_compiler_flag(CUDA -Ofc=max GPUNVME_HAVE_QUICK)
                if(GPUNVME_HAVE_QUICK)
                    add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-Ofc=max>)
                endif()
            endif()
        else()
            set(why "the CUDA toolkit of ${CMAKE_CUDA_COMPILER} has no libcudart_static")
        endif()
    elseif(nvcc)
        set(why "${nvcc} does not work (is g++ there?): see ${CMAKE_BINARY_DIR}/CMakeFiles")
    else()
        set(why "there is no nvcc on PATH or in /usr/local/cuda/bin")
    endif()
endif()

if(GPUNVME_HAVE_CUDA)
    message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
elseif(GPUNVME_CUDA STREQUAL "ON")
    message(FATAL_ERROR "GPUNVME_CUDA is ON, but ${why}. Install the CUDA toolkit or name its nvcc "
                        "with -DCMAKE_CUDA_COMPILER=…, or build with -DGPUNVME_CUDA=OFF.")
else()
    message(STATUS "CUDA: not built, ${why}")
endif()

# gpunvme_cuda_without_cxx(target): the host's half of its kernels needs no C++ runtime, so programs
# in C link none. Two things would need one: tables for exceptions, and the guarded static variables
# in which the launch of nvcc 13 keeps a kernel's handle. __NV_LEGACY_LAUNCH is the launch without
# them (crt/host_runtime.h), which earlier versions take anyway.
function(gpunvme_cuda_without_cxx target)
    target_compile_options(${target} PRIVATE
        $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fno-exceptions,-D__NV_LEGACY_LAUNCH>)
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C)
endfunction()
