# SPDX-License-Identifier: BSD-3-Clause
#
# GPUNVME_CUDA_ARCHITECTURES, unless it is given: those of the GPUs that this machine has. Without a
# GPU it stays unset, and the project's own default is built.
if(NOT DEFINED GPUNVME_CUDA_ARCHITECTURES)
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE found ERROR_QUIET RESULT_VARIABLE failed)
    if(failed) # it may print versions of the driver then
        set(found "")
    endif()
    string(REGEX MATCHALL "[0-9]+\\.[0-9]" found "${found}")
    string(REPLACE "." "" found "${found}")
    list(REMOVE_DUPLICATES found)
    string(REGEX REPLACE "(^|;)90($|;)" "\\190a\\2" found "${found}") # Hopper's own instructions
    if(found)
        set(GPUNVME_CUDA_ARCHITECTURES ${found})
    endif()
endif()
