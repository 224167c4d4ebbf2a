/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The PTX instructions that kernels use, one function each, named by what the PTX ISA manual calls
 * them ("Instructions" there has a section for each).
 */
#ifndef OPS_CUDA_PTX_CUH
#define OPS_CUDA_PTX_CUH

#include <stdint.h>

/* The memory that a launch asked for, the same one in all kernels. */
static __device__ __forceinline__ unsigned char *dynamic_shared(void)
{
    extern __shared__ __align__(128) unsigned char memory_of_the_launch[];

    return memory_of_the_launch;
}

/* A pointer to shared memory as instructions take it. */
static __device__ __forceinline__ uint32_t shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/*
 * cp.async: copies `valid` bytes to shared memory without a register in between,
 * and zeros up to 4 or 16. Addresses are aligned to that size; `from` is not read if valid is 0.
 */
static __device__ __forceinline__ void cp_async4(uint32_t to, const void *from, uint32_t valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid)
                 : "memory");
}

static __device__ __forceinline__ void cp_async16(uint32_t to, const void *from, uint32_t valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid)
                 : "memory");
}

static __device__ __forceinline__ void cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most PENDING of this thread's groups are under way. */
template <int PENDING> static __device__ __forceinline__ void cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/*
 * ldmatrix: four matrices of 8 x 8 elements of 16 bits, rows of 16 bytes at the
 * addresses of 8 lanes each. Lane l has elements 2 (l % 4) and one on of row l / 4; transposed,
 * of column l / 4.
 */
static __device__ __forceinline__ void load_matrices(uint32_t (&x)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
}

static __device__ __forceinline__ void load_matrices_transposed(uint32_t (&x)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
}

static __device__ __forceinline__ void store_shared16(uint32_t to, const uint32_t (&x)[4])
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
}

static __device__ __forceinline__ uint4 load_shared16(uint32_t from)
{
    uint4 x;

    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}

static __device__ __forceinline__ void store_shared4(uint32_t to, uint32_t x)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}

/* A word, and two aligned to 8 bytes. */
static __device__ __forceinline__ uint32_t load_shared4(uint32_t from)
{
    uint32_t x;

    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
    return x;
}

static __device__ __forceinline__ void load_shared8(uint32_t &x, uint32_t &y, uint32_t from)
{
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "r"(from) : "memory");
}

static __device__ __forceinline__ void store_shared8(uint32_t to, float x, float y)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}

/* mma: sums of 16 x 8 += 16 x 16 times 16 x 8, or 16 x 8 times 8 x 8 of tf32. */
#define MMA(name, shape, type)                                                                     \
    static __device__ __forceinline__ void name(float(&d)[4], const uint32_t(&a)[4], uint32_t b0,  \
                                                uint32_t b1)                                       \
    {                                                                                              \
        asm volatile("mma.sync.aligned." shape ".row.col.f32." type "." type                       \
                     ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"        \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));              \
    }

MMA(mma_f16, "m16n8k16", "f16")
MMA(mma_bf16, "m16n8k16", "bf16")
MMA(mma_tf32, "m16n8k8", "tf32")

/* ex2.approx and rcp.approx: off by 2^-22 and one ulp; what is subnormal becomes 0. */
static __device__ __forceinline__ float fast_exp2(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float fast_reciprocal(float x)
{
    float y;

    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The larger one, or NaN if one is. */
static __device__ __forceinline__ float max_or_nan(float x, float y)
{
    float z;

    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

/* Two elements of a 16-bit type in one register, the first in the lower half. */
static __device__ __forceinline__ uint32_t pack_f16(float low, float high)
{
    uint32_t pair;

    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

static __device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    uint32_t pair;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* The larger ones of two pairs of f16 or bf16; of a number and NaN the number. */
static __device__ __forceinline__ uint32_t max_f16(uint32_t x, uint32_t y)
{
    uint32_t z;

    asm("max.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}

static __device__ __forceinline__ uint32_t max_bf16(uint32_t x, uint32_t y)
{
    uint32_t z;

    asm("max.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}

/* Four of e4m3, the first in the lowest byte; what is larger becomes its largest number, 448. */
static __device__ __forceinline__ uint32_t pack_e4m3(float a, float b, float c, float d)
{
    uint32_t four;

    asm("{\n"
        ".reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n"
        "}"
        : "=r"(four)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return four;
}

/* f32 to the nearest tf32, ties away from zero. */
static __device__ __forceinline__ uint32_t to_tf32(float x)
{
    uint32_t y;

    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

/* Two elements of e4m3 as f16, which holds them all (sm_89 and later). */
static __device__ __forceinline__ uint32_t unpack_e4m3(uint16_t pair)
{
    uint32_t y;

    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(pair));
    return y;
}

/* Four of them, without an instruction that shifts the upper ones down. */
static __device__ __forceinline__ void unpack_four_e4m3(uint32_t four, uint32_t &low,
                                                        uint32_t &high)
{
    asm("{\n"
        ".reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n"
        "}"
        : "=r"(low), "=r"(high)
        : "r"(four));
}

/* 128 threads of a block wait for each other; id is 1 … 15, for 0 is __syncthreads()'s. */
static __device__ __forceinline__ void barrier_128(int id)
{
    asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

/* Likewise 256 threads. */
static __device__ __forceinline__ void barrier_256(int id)
{
    asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory");
}

/* Likewise `threads` of a block, of which some only say that they have come, and go on. */
static __device__ __forceinline__ void barrier_wait(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ void barrier_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* stmatrix: four matrices of 8 x 8 elements of 16 bits; a lane names one row. */
static __device__ __forceinline__ void store_matrices(uint32_t to, const uint32_t (&x)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

/* Shared memory written by this thread will be read by the copy engine or the tensor cores. */
static __device__ __forceinline__ void fence_async_proxy(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/*
 * Likewise global memory: by who wrote it, before the release by which others learn of it, and by
 * who asks the copy engine for it, after the acquire (PTX ISA, "Proxies": the order of memory
 * reaches another proxy only through a proxy fence).
 */
static __device__ __forceinline__ void fence_async_proxy_global(void)
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* To four floats in global memory, 16 bytes aligned, in no order with others that add there. */
static __device__ __forceinline__ void add_four(float *to, float4 x)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    atomicAdd((float4 *)to, x);
#else
    atomicAdd(to, x.x);
    atomicAdd(to + 1, x.y);
    atomicAdd(to + 2, x.z);
    atomicAdd(to + 3, x.w);
#endif
}

/* A count in global memory: one more, after all that this thread did or knows of. */
static __device__ __forceinline__ void count_up(uint32_t *count)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}

/* Likewise one of 64 bits; what was done before the others' counts is known here then. */
static __device__ __forceinline__ uint64_t count_and_get(uint64_t *count)
{
    uint64_t before;

    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], 1;"
                 : "=l"(before)
                 : "l"(count)
                 : "memory");
    return before;
}

/* Global memory becomes `now` if it is `known`; returns what it was. */
static __device__ __forceinline__ uint64_t exchange_if(uint64_t *at, uint64_t known, uint64_t now)
{
    uint64_t before;

    asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(before)
                 : "l"(at), "l"(known), "l"(now)
                 : "memory");
    return before;
}

/* mbarrier: a phase ends when all have arrived and all bytes expected have come. */
static __device__ __forceinline__ void mbarrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

/* Makes initialised barriers known to the cluster and the copy engine. */
static __device__ __forceinline__ void mbarrier_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void mbarrier_arrive_expecting(uint32_t barrier, uint32_t nbytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(nbytes)
                 : "memory");
}

/*
 * At the barrier in the same place of block `rank` of the cluster. What this thread wrote is not
 * made known to the cluster (that would be .release.cluster, and a fence that waits for all of it):
 * what arrives here has only read, by wgmma, which wgmma_wait() has ended.
 */
static __device__ __forceinline__ void mbarrier_arrive_at(uint32_t barrier, uint32_t rank)
{
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

/* At a barrier of this block. */
static __device__ __forceinline__ void mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/*
 * A wait that lasts as long as this, in ns, will never end: the kernel then ends with an error, and
 * the process needs a new context. Time in which this thread stood still does not count, as under a
 * debugger or while another process has the GPU: between two looks at the clock it is at most
 * MBARRIER_STEP.
 */
#define MBARRIER_DEADLINE 10000000000
#define MBARRIER_STEP     10000000

/* The rest of a wait, whose test for `done` is `test`: again until it is, or the time is over. */
#define UNTIL_DONE_OR_TRAP(test)                                                                   \
    "mov.u64 last, %%globaltimer;\n"                                                               \
    "mov.u64 left, %2;\n"                                                                          \
    "again_%=:\n" test "@done bra ended_%=;\n"                                                     \
    "mov.u64 now, %%globaltimer;\n"                                                                \
    "sub.u64 last, now, last;\n"                                                                   \
    "min.u64 last, last, %3;\n"                                                                    \
    "sub.s64 left, left, last;\n"                                                                  \
    "mov.u64 last, now;\n"                                                                         \
    "setp.gt.s64 done, left, 0;\n"                                                                 \
    "@done bra again_%=;\n"                                                                        \
    "trap;\n"                                                                                      \
    "ended_%=:\n"

/*
 * Until the phase of this parity has ended. The clock is looked at only where the first try, which
 * waits for some time itself, was in vain.
 */
#define TRY "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
static __device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 ".reg .b64 last, left, now;\n" TRY
                 "@done bra ended_%=;\n" UNTIL_DONE_OR_TRAP(TRY) "}" ::"r"(barrier),
                 "r"(parity), "n"(MBARRIER_DEADLINE), "n"(MBARRIER_STEP)
                 : "memory");
}
#undef TRY

/* Until a count in global memory is as high, and what was done before it is known here. */
#define TRY                                                                                        \
    "ld.acquire.gpu.global.u32 value, [%0];\n"                                                     \
    "setp.ge.u32 done, value, %1;\n"
static __device__ __forceinline__ void wait_for_count(const uint32_t *count, uint32_t least)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 ".reg .b32 value;\n"
                 ".reg .b64 last, left, now;\n" TRY "@done bra ended_%=;\n" UNTIL_DONE_OR_TRAP(
                     "nanosleep.u32 64;\n" TRY) "}" ::"l"(count),
                 "r"(least), "n"(MBARRIER_DEADLINE), "n"(MBARRIER_STEP)
                 : "memory");
}
#undef TRY

/* Of this block in its cluster; how many it has; which cluster of how many this is. */
static __device__ __forceinline__ uint32_t cluster_rank(void)
{
    uint32_t x;

    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(x));
    return x;
}

static __device__ __forceinline__ uint32_t cluster_size(void)
{
    uint32_t x;

    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(x));
    return x;
}

/* A float in shared memory, at this address in block `rank` of the cluster. */
static __device__ __forceinline__ float load_shared_at(uint32_t address, uint32_t rank)
{
    float x;

    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %1, %2;\n"
                 "ld.shared::cluster.f32 %0, [there];\n"
                 "}"
                 : "=f"(x)
                 : "r"(address), "r"(rank)
                 : "memory");
    return x;
}

/*
 * Two floats to shared memory of block `rank` of the cluster, at the address that they would have
 * here. The barrier in the same place there counts their 8 bytes, and its waiters see them. Only in
 * clusters of several blocks.
 */
static __device__ __forceinline__ void store_shared8_at(uint32_t to, uint32_t barrier,
                                                        uint32_t rank, float x, float y)
{
    asm volatile("{\n"
                 ".reg .b32 there, its;\n"
                 ".reg .b64 both;\n"
                 "mapa.shared::cluster.u32 there, %0, %2;\n"
                 "mapa.shared::cluster.u32 its, %1, %2;\n"
                 "mov.b64 both, {%3, %4};\n"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [there], both, "
                 "[its];\n"
                 "}" ::"r"(to),
                 "r"(barrier), "r"(rank), "f"(x), "f"(y)
                 : "memory");
}

/* All threads of the cluster's blocks wait for each other. */
static __device__ __forceinline__ void cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/*
 * Programmatic dependent launch: the kernel after this one may have its blocks put where there is
 * room; and this one waits for the kernels before it, whose writes it then sees. Before sm_90 they
 * have ended when a kernel begins.
 */
static __device__ __forceinline__ void let_next_kernel_start(void)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ void wait_for_kernels_before(void)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The line of 128 bytes at an address of global memory to the L2 cache. */
static __device__ __forceinline__ void prefetch_line(const void *at)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at) : "memory");
}

/* A tensor map will be needed soon. */
static __device__ __forceinline__ void tensor_prefetch(const void *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/*
 * cp.async.bulk.tensor: the box of a tensor map at (x, y, z) to shared memory; the
 * barrier hears of its bytes. What of the box is outside the tensor becomes 0.
 */
static __device__ __forceinline__ void tensor_load(uint32_t to, const void *map, int x, int y,
                                                   int z, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
                 : "memory");
}

/* Likewise of a map of four dimensions. */
static __device__ __forceinline__ void tensor_load4(uint32_t to, const void *map,
                                                    const int (&at)[4], uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(barrier)
                 : "memory");
}

/* To the same place in each block of the cluster whose bit is set, and to its barrier there. */
static __device__ __forceinline__ void tensor_load_multicast(uint32_t to, const void *map, int x,
                                                             int y, int z, uint32_t barrier,
                                                             uint16_t ranks)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(ranks)
                 : "memory");
}

static __device__ __forceinline__ void tensor_load4_multicast(uint32_t to, const void *map,
                                                              const int (&at)[4], uint32_t barrier,
                                                              uint16_t ranks)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
                 "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(barrier), "h"(ranks)
                 : "memory");
}

/* From shared memory; what of the box is outside the tensor is not written. */
static __device__ __forceinline__ void tensor_store(const void *map, uint32_t from, int x, int y,
                                                    int z)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(
            map),
        "r"(x), "r"(y), "r"(z), "r"(from)
        : "memory");
}

/* cp.async.bulk: so many bytes, a multiple of 16, to shared memory; the barrier hears of them. */
static __device__ __forceinline__ void bulk_load(uint32_t to, const void *from, uint32_t nbytes,
                                                 uint32_t barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(to),
        "l"(from), "r"(nbytes), "r"(barrier)
        : "memory");
}

/* cp.reduce.async.bulk: floats from shared memory are added to those in global memory. */
static __device__ __forceinline__ void bulk_add(float *to, uint32_t from, uint32_t nbytes)
{
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
        "r"(from), "r"(nbytes)
        : "memory");
}

static __device__ __forceinline__ void tensor_store_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Until at most PENDING of this thread's groups still read shared memory. */
template <int PENDING> static __device__ __forceinline__ void tensor_store_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

/* Until at most PENDING of them have not ended. */
template <int PENDING> static __device__ __forceinline__ void tensor_store_wait(void)
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* setmaxnreg: a warp group gives registers back, or takes those given back. */
template <int COUNT> static __device__ __forceinline__ void registers_give_back(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> static __device__ __forceinline__ void registers_take(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

#endif
