/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wgmma of 16-bit types for other widths than wgmma.cuh has: 64 rows by 16, 24, 32, 48, 96, 112,
 * 160 or 192 columns of sums.
 */
#ifndef OPS_HOPPER_WGMMA_NARROW_CUH
#define OPS_HOPPER_WGMMA_NARROW_CUH

#include "ops/hopper/wgmma.cuh"

#ifdef WGMMA_BOTH /* not in the emulation, which has them all */
#define WGMMA_SUMS_12 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}"
#define WGMMA_SUMS_16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define WGMMA_SUMS_24                                                                              \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                      \
    "%16, %17, %18, %19, %20, %21, %22, %23}"
#define WGMMA_SUMS_56                                                                              \
    "{" WGMMA_FROM_0                                                                               \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "           \
    "%48, %49, %50, %51, %52, %53, %54, %55}"
#define WGMMA_SUMS_80                                                                              \
    "{" WGMMA_FROM_0 ", " WGMMA_FROM_32                                                            \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}"
#define WGMMA_SUMS_96 "{" WGMMA_FROM_0 ", " WGMMA_FROM_32 ", " WGMMA_FROM_64 "}"

#define WGMMA_ALL_80(d) WGMMA_64(d, 0), WGMMA_8(d, 64), WGMMA_8(d, 72)
#define WGMMA_ALL_96(d) WGMMA_64(d, 0), WGMMA_32(d, 64)
#define WGMMA_ALL_56(d) WGMMA_32(d, 0), WGMMA_8(d, 32), WGMMA_8(d, 40), WGMMA_8(d, 48)
#define WGMMA_ALL_24(d) WGMMA_8(d, 0), WGMMA_8(d, 8), WGMMA_8(d, 16)
#define WGMMA_ALL_16(d) WGMMA_8(d, 0), WGMMA_8(d, 8)
#define WGMMA_ALL_12(d) WGMMA_8(d, 0), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])

WGMMA_WAIT(96)
WGMMA_WAIT(80)
WGMMA_WAIT(56)
WGMMA_WAIT(24)
WGMMA_WAIT(16)
WGMMA_WAIT(12)

WGMMA_BOTH("192", 96, WGMMA_SUMS_96, "%96, %97", "%98", "%99, %100")
WGMMA_BOTH("160", 80, WGMMA_SUMS_80, "%80, %81", "%82", "%83, %84")
WGMMA_BOTH("112", 56, WGMMA_SUMS_56, "%56, %57", "%58", "%59, %60")
WGMMA_BOTH("96", 48, WGMMA_SUMS_48, "%48, %49", "%50", "%51, %52")
WGMMA_BOTH("48", 24, WGMMA_SUMS_24, "%24, %25", "%26", "%27, %28")
WGMMA_BOTH("32", 16, WGMMA_SUMS_16, "%16, %17", "%18", "%19, %20")
WGMMA_BOTH("24", 12, WGMMA_SUMS_12, "%12, %13", "%14", "%15, %16")
WGMMA_BOTH("16", 8, WGMMA_SUMS_8, "%8, %9", "%10", "%11, %12")
#endif

#endif
