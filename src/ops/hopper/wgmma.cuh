/* SPDX-License-Identifier: BSD-3-Clause
 *
 * wgmma of sm_90a, one function each instruction: 64 rows by 16, 64, 80, 96, 128, 176 or 256
 * columns of sums.
 */
#ifndef OPS_HOPPER_WGMMA_CUH
#define OPS_HOPPER_WGMMA_CUH

#include "ops/cuda/ptx.cuh"

/* wgmma: before the first one on registers that the warp group wrote. */
static __device__ __forceinline__ void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING> static __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#define WGMMA_FROM_0                                                                               \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_FROM_32                                                                              \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_FROM_64                                                                              \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_FROM_96                                                                              \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "   \
    "%127"
#define WGMMA_SUMS_8  "{%0, %1, %2, %3, %4, %5, %6, %7}"
#define WGMMA_SUMS_32 "{" WGMMA_FROM_0 "}"
#define WGMMA_SUMS_40 "{" WGMMA_FROM_0 ", %32, %33, %34, %35, %36, %37, %38, %39}"
#define WGMMA_SUMS_48                                                                              \
    "{" WGMMA_FROM_0                                                                               \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}"
#define WGMMA_SUMS_88                                                                              \
    "{" WGMMA_FROM_0 ", " WGMMA_FROM_32                                                            \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "           \
    "%80, %81, %82, %83, %84, %85, %86, %87}"
#define WGMMA_SUMS_64 "{" WGMMA_FROM_0 ", " WGMMA_FROM_32 "}"
#define WGMMA_SUMS    "{" WGMMA_FROM_0 ", " WGMMA_FROM_32 ", " WGMMA_FROM_64 ", " WGMMA_FROM_96 "}"
#define WGMMA_8(d, i)                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define WGMMA_32(d, i) WGMMA_8(d, i), WGMMA_8(d, i + 8), WGMMA_8(d, i + 16), WGMMA_8(d, i + 24)
#define WGMMA_64(d, i)                                                                             \
    WGMMA_8(d, i), WGMMA_8(d, i + 8), WGMMA_8(d, i + 16), WGMMA_8(d, i + 24), WGMMA_8(d, i + 32),  \
        WGMMA_8(d, i + 40), WGMMA_8(d, i + 48), WGMMA_8(d, i + 56)

#define WGMMA_ALL_128(d) WGMMA_64(d, 0), WGMMA_64(d, 64)
#define WGMMA_ALL_88(d)  WGMMA_64(d, 0), WGMMA_8(d, 64), WGMMA_8(d, 72), WGMMA_8(d, 80)
#define WGMMA_ALL_64(d)  WGMMA_64(d, 0)
#define WGMMA_ALL_48(d)  WGMMA_32(d, 0), WGMMA_8(d, 32), WGMMA_8(d, 40)
#define WGMMA_ALL_40(d)  WGMMA_32(d, 0), WGMMA_8(d, 32)
#define WGMMA_ALL_32(d)  WGMMA_32(d, 0)
#define WGMMA_ALL_8(d)   WGMMA_8(d, 0)

/*
 * Until all groups have ended, or all but the last. The sums are named so that the compiler, which
 * takes them for finished since they were asked for, uses them only from here on.
 */
#define WGMMA_WAIT(count)                                                                          \
    static __device__ __forceinline__ void wgmma_wait_for(float(&sums)[count])                     \
    {                                                                                              \
        asm volatile("wgmma.wait_group.sync.aligned 0;" : WGMMA_ALL_##count(sums)::"memory");      \
    }                                                                                              \
    static __device__ __forceinline__ void wgmma_wait_for_all_but_last(float(&sums)[count])        \
    {                                                                                              \
        asm volatile("wgmma.wait_group.sync.aligned 1;" : WGMMA_ALL_##count(sums)::"memory");      \
    }

WGMMA_WAIT(128)
WGMMA_WAIT(88)
WGMMA_WAIT(64)
WGMMA_WAIT(48)
WGMMA_WAIT(40)
WGMMA_WAIT(32)
WGMMA_WAIT(8)

/* Until at most PENDING groups are under way, where the sums are those of one that has ended. */
template <int PENDING> static __device__ __forceinline__ void wgmma_wait_leaving(float (&sums)[64])
{
    asm volatile("wgmma.wait_group.sync.aligned %64;"
                 : WGMMA_64(sums, 0)
                 : "n"(PENDING)
                 : "memory");
}

template <int PENDING> static __device__ __forceinline__ void wgmma_wait_leaving(float (&sums)[32])
{
    asm volatile("wgmma.wait_group.sync.aligned %32;"
                 : WGMMA_32(sums, 0)
                 : "n"(PENDING)
                 : "memory");
}

/*
 * sums = A B + (accumulate ? sums : 0) for 64 x 256, 176, 128, 80 or 64 elements, A and B by their
 * descriptors. The sum of row 16 w + l / 4 + 8 h, column 8 j + 2 (l % 4) + i is sums[4 j + 2 h + i]
 * of lane l of warp w ("Accumulator D" there). MN_A and MN_B say that m or n, not k, is contiguous;
 * tf32 has no such.
 */
#define WGMMA(name, type, cols, count, sums_named, operands, predicate, directions)                \
    template <int MN_A, int MN_B>                                                                  \
    static __device__ __forceinline__ void name(float(&sums)[count], uint64_t a, uint64_t b,       \
                                                int accumulate)                                    \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " predicate ", 0;\n"                        \
                     "wgmma.mma_async.sync.aligned.m64n" cols "k16.f32." type "." type             \
                     " " sums_named ", " operands ", p, 1, 1, " directions ";\n}"                  \
                     : WGMMA_ALL_##count(sums)                                                     \
                     : "l"(a), "l"(b), "r"(accumulate), "n"(MN_A), "n"(MN_B));                     \
    }
#define WGMMA_BOTH(...) WGMMA(wgmma_f16, "f16", __VA_ARGS__) WGMMA(wgmma_bf16, "bf16", __VA_ARGS__)

WGMMA_BOTH("256", 128, WGMMA_SUMS, "%128, %129", "%130", "%131, %132")
WGMMA_BOTH("176", 88, WGMMA_SUMS_88, "%88, %89", "%90", "%91, %92")
WGMMA_BOTH("128", 64, WGMMA_SUMS_64, "%64, %65", "%66", "%67, %68")
WGMMA_BOTH("80", 40, WGMMA_SUMS_40, "%40, %41", "%42", "%43, %44")
WGMMA_BOTH("64", 32, WGMMA_SUMS_32, "%32, %33", "%34", "%35, %36")

/*
 * Likewise sums = A B, whatever the sums were. While others are under way only this begins sums
 * without the assembler's waiting for those: it finds no other instruction that wrote to them.
 */
#define WGMMA_NEW_8(d, i)                                                                          \
    "=f"(d[i]), "=f"(d[i + 1]), "=f"(d[i + 2]), "=f"(d[i + 3]), "=f"(d[i + 4]), "=f"(d[i + 5]),    \
        "=f"(d[i + 6]), "=f"(d[i + 7])
#define WGMMA_NEW_32(d) WGMMA_NEW_8(d, 0), WGMMA_NEW_8(d, 8), WGMMA_NEW_8(d, 16), WGMMA_NEW_8(d, 24)
#define WGMMA_NEW_64(d)                                                                            \
    WGMMA_NEW_32(d), WGMMA_NEW_8(d, 32), WGMMA_NEW_8(d, 40), WGMMA_NEW_8(d, 48), WGMMA_NEW_8(d, 56)
#define WGMMA_NEW(name, type, cols, count, sums_named, operands, directions)                       \
    template <int MN_A, int MN_B>                                                                  \
    static __device__ __forceinline__ void name##_new(float(&sums)[count], uint64_t a, uint64_t b) \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"                                    \
                     "wgmma.mma_async.sync.aligned.m64n" cols "k16.f32." type "." type             \
                     " " sums_named ", " operands ", p, 1, 1, " directions ";\n}"                  \
                     : WGMMA_NEW_##count(sums)                                                     \
                     : "l"(a), "l"(b), "n"(MN_A), "n"(MN_B));                                      \
    }
#define WGMMA_BOTH_NEW(...)                                                                        \
    WGMMA_NEW(wgmma_f16, "f16", __VA_ARGS__) WGMMA_NEW(wgmma_bf16, "bf16", __VA_ARGS__)

WGMMA_BOTH_NEW("128", 64, WGMMA_SUMS_64, "%64, %65", "%66, %67")
WGMMA_BOTH_NEW("64", 32, WGMMA_SUMS_32, "%32, %33", "%34, %35")

/*
 * Likewise with A from registers: a[2 g + h] of lane l of warp w has k = 8 g + 2 (l % 4) and the
 * next one of row 16 w + l / 4 + 8 h. So sums of one product, two neighbours packed, are the first
 * operand of the next. The registers belong to the instruction until it has ended.
 */
#define WGMMA_BY_REGISTERS(name, type, cols, count, sums_named, operands, predicate, direction)    \
    template <int MN_B>                                                                            \
    static __device__ __forceinline__ void name(float(&sums)[count], const uint32_t *a,            \
                                                uint64_t b, int accumulate)                        \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " predicate ", 0;\n"                        \
                     "wgmma.mma_async.sync.aligned.m64n" cols "k16.f32." type "." type             \
                     " " sums_named ", " operands ", p, 1, 1, " direction ";\n}"                   \
                     : WGMMA_ALL_##count(sums)                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate),        \
                       "n"(MN_B));                                                                 \
    }
#define WGMMA_BOTH_BY_REGISTERS(...)                                                               \
    WGMMA_BY_REGISTERS(wgmma_f16_by_registers, "f16", __VA_ARGS__)                                 \
    WGMMA_BY_REGISTERS(wgmma_bf16_by_registers, "bf16", __VA_ARGS__)

WGMMA_BOTH_BY_REGISTERS("256", 128, WGMMA_SUMS, "{%128, %129, %130, %131}, %132", "%133", "%134")
WGMMA_BOTH_BY_REGISTERS("128", 64, WGMMA_SUMS_64, "{%64, %65, %66, %67}, %68", "%69", "%70")
WGMMA_BOTH_BY_REGISTERS("64", 32, WGMMA_SUMS_32, "{%32, %33, %34, %35}, %36", "%37", "%38")

/*
 * Elements of 8 bits, 32 of k, both operands contiguous along k. The sums keep some 14 bits: what
 * is below is cut off.
 */
#define WGMMA_FP8(name, types, cols, count, sums_named, operands, predicate)                       \
    static __device__ __forceinline__ void name(float(&sums)[count], uint64_t a, uint64_t b,       \
                                                int accumulate)                                    \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " predicate ", 0;\n"                        \
                     "wgmma.mma_async.sync.aligned.m64n" cols "k32.f32." types " " sums_named      \
                     ", " operands ", p, 1, 1;\n}"                                                 \
                     : WGMMA_ALL_##count(sums)                                                     \
                     : "l"(a), "l"(b), "r"(accumulate));                                           \
    }
#define WGMMA_ALL_FP8(...)                                                                         \
    WGMMA_FP8(wgmma_e4m3, "e4m3.e4m3", __VA_ARGS__)                                                \
    WGMMA_FP8(wgmma_e5m2, "e5m2.e5m2", __VA_ARGS__)                                                \
    WGMMA_FP8(wgmma_e4m3_e5m2, "e4m3.e5m2", __VA_ARGS__)                                           \
    WGMMA_FP8(wgmma_e5m2_e4m3, "e5m2.e4m3", __VA_ARGS__)

WGMMA_ALL_FP8("256", 128, WGMMA_SUMS, "%128, %129", "%130")
WGMMA_ALL_FP8("128", 64, WGMMA_SUMS_64, "%64, %65", "%66")
WGMMA_ALL_FP8("16", 8, WGMMA_SUMS_8, "%8, %9", "%10")
WGMMA_FP8(wgmma_e4m3, "e4m3.e4m3", "96", 48, WGMMA_SUMS_48, "%48, %49", "%50")

/*
 * Likewise with A from registers: byte i of a[2 g + h] of lane l of warp w has k = 16 g + 4 (l % 4)
 * + i of row 16 w + l / 4 + 8 h ("Register Fragments for wgmma.mma_async.m64nNk32").
 */
static __device__ __forceinline__ void wgmma_e4m3_by_registers(float (&sums)[64], const uint32_t *a,
                                                               uint64_t b, int accumulate)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 " WGMMA_SUMS_64
                 ", {%64, %65, %66, %67}, %68, p, 1, 1;\n}"
                 : WGMMA_ALL_64(sums)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

#define WGMMA_FP8_NEW(name, types, cols, count, sums_named, operands)                              \
    static __device__ __forceinline__ void name##_new(float(&sums)[count], uint64_t a, uint64_t b) \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"                                    \
                     "wgmma.mma_async.sync.aligned.m64n" cols "k32.f32." types " " sums_named      \
                     ", " operands ", p, 1, 1;\n}"                                                 \
                     : WGMMA_NEW_##count(sums)                                                     \
                     : "l"(a), "l"(b));                                                            \
    }

WGMMA_FP8_NEW(wgmma_e4m3, "e4m3.e4m3", "128", 64, WGMMA_SUMS_64, "%64, %65")
WGMMA_FP8_NEW(wgmma_e5m2, "e5m2.e5m2", "128", 64, WGMMA_SUMS_64, "%64, %65")
WGMMA_FP8_NEW(wgmma_e4m3_e5m2, "e4m3.e5m2", "128", 64, WGMMA_SUMS_64, "%64, %65")
WGMMA_FP8_NEW(wgmma_e5m2_e4m3, "e5m2.e4m3", "128", 64, WGMMA_SUMS_64, "%64, %65")

static __device__ __forceinline__ void wgmma_tf32(float (&sums)[128], uint64_t a, uint64_t b,
                                                  int accumulate)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 " WGMMA_SUMS
                 ", %128, %129, p, 1, 1;\n}"
                 : WGMMA_64(sums, 0), WGMMA_64(sums, 64)
                 : "l"(a), "l"(b), "r"(accumulate));
}

/* Four of A's fragments for wgmma_tf32_by_registers(). */
struct wgmma_fragments {
    uint32_t x[16];
};

/*
 * Likewise with A from registers: x[4 i + 2 g + h] of lane l of warp w is row 16 w + l / 4 + 8 h,
 * k = l % 4 + 4 g of fragment i ("Register Fragments for wgmma.mma_async.m64nNk8"). They belong to
 * the instruction until it has ended: see wgmma_wait_keeping().
 */
static __device__ __forceinline__ void wgmma_tf32_by_registers(float (&sums)[128],
                                                               const wgmma_fragments &a, int i,
                                                               uint64_t b, int accumulate)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 " WGMMA_SUMS
                 ", {%128, %129, %130, %131}, %132, p, 1, 1;\n}"
                 : WGMMA_64(sums, 0), WGMMA_64(sums, 64)
                 : "r"(a.x[4 * i]), "r"(a.x[4 * i + 1]), "r"(a.x[4 * i + 2]), "r"(a.x[4 * i + 3]),
                   "l"(b), "r"(accumulate));
}

#define WGMMA_KEEP_8(x, i)                                                                         \
    "+r"(x[i]), "+r"(x[i + 1]), "+r"(x[i + 2]), "+r"(x[i + 3]), "+r"(x[i + 4]), "+r"(x[i + 5]),    \
        "+r"(x[i + 6]), "+r"(x[i + 7])

/*
 * Until at most PENDING groups are under way. The fragments of those that ended are named, so that
 * the compiler leaves their registers alone until then.
 */
template <int PENDING> static __device__ __forceinline__ void wgmma_wait_keeping(wgmma_fragments &a)
{
    asm volatile("wgmma.wait_group.sync.aligned %16;"
                 : WGMMA_KEEP_8(a.x, 0), WGMMA_KEEP_8(a.x, 8)
                 : "n"(PENDING)
                 : "memory");
}

#endif
