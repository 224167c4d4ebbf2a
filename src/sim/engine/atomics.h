/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What run.h needs beyond gpunvme/atomics.h: operations of block scope, relaxed ones of device
 * scope, and accesses of 16 bytes. On the CPU all of them are ordinary atomics, so that a thread
 * sanitizer sees what orders what.
 */
#ifndef SIM_ENGINE_ATOMICS_H
#define SIM_ENGINE_ATOMICS_H

#include <sched.h>
#include <stdint.h>
#include <string.h>

#include "gpunvme/atomics.h"
#include "gpunvme/fn.h"
#include "gpunvme/nvme.h"

#if defined(__CUDA_ARCH__)

/* Within the block: only for shared memory. PTX ISA, "Memory Consistency Model", scope .cta. */
GPUNVME_FN uint32_t sim_block_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

GPUNVME_FN uint32_t sim_block_load32(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(v) : "r"(sim_block_at(p)) : "memory");
    return v;
}

GPUNVME_FN uint64_t sim_block_load64(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.acquire.cta.shared.u64 %0, [%1];" : "=l"(v) : "r"(sim_block_at(p)) : "memory");
    return v;
}

/* Orders nothing: of words that only the caller changes, or where an old value does no harm. */
GPUNVME_FN uint32_t sim_block_peek32(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.cta.shared.u32 %0, [%1];" : "=r"(v) : "r"(sim_block_at(p)));
    return v;
}

GPUNVME_FN void sim_block_store32(uint32_t *p, uint32_t v)
{
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(sim_block_at(p)), "r"(v) : "memory");
}

/* Orders nothing, as sim_block_peek32(). */
GPUNVME_FN void sim_block_set32(uint32_t *p, uint32_t v)
{
    asm volatile("st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(sim_block_at(p)), "r"(v) : "memory");
}

/* Takes a try-lock; sim_block_store32() gives it back. */
GPUNVME_FN uint32_t sim_block_exchange32(uint32_t *p, uint32_t v)
{
    uint32_t old;
    asm volatile("atom.acquire.cta.shared.exch.b32 %0, [%1], %2;"
                 : "=r"(old)
                 : "r"(sim_block_at(p)), "r"(v)
                 : "memory");
    return old;
}

GPUNVME_FN int sim_block_cas64(uint64_t *p, uint64_t *expected, uint64_t v)
{
    uint64_t old, want = *expected;
    asm volatile("atom.acq_rel.cta.shared.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "r"(sim_block_at(p)), "l"(want), "l"(v)
                 : "memory");
    *expected = old;
    return old == want;
}

/* Likewise, but orders nothing. */
GPUNVME_FN int sim_block_cas64_relaxed(uint64_t *p, uint64_t *expected, uint64_t v)
{
    uint64_t old, want = *expected;
    asm volatile("atom.relaxed.cta.shared.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "r"(sim_block_at(p)), "l"(want), "l"(v)
                 : "memory");
    *expected = old;
    return old == want;
}

GPUNVME_FN uint32_t sim_block_or32(uint32_t *p, uint32_t v)
{
    uint32_t old;
    asm volatile("atom.relaxed.cta.shared.or.b32 %0, [%1], %2;"
                 : "=r"(old)
                 : "r"(sim_block_at(p)), "r"(v)
                 : "memory");
    return old;
}

GPUNVME_FN void sim_block_and32(uint32_t *p, uint32_t v)
{
    asm volatile("red.relaxed.cta.shared.and.b32 [%0], %1;" ::"r"(sim_block_at(p)), "r"(v)
                 : "memory");
}

GPUNVME_FN void sim_block_add64(uint64_t *p, uint64_t v)
{
    asm volatile("red.relaxed.cta.shared.add.u64 [%0], %1;" ::"r"(sim_block_at(p)), "l"(v)
                 : "memory");
}

/* A word that one thread at a time changes grows: shared memory has no 64-bit addition of its own,
 * sim_block_add64() is a loop. */
GPUNVME_FN void sim_block_grow64(uint64_t *p, uint64_t by)
{
    uint64_t v;
    asm volatile("ld.relaxed.cta.shared.u64 %0, [%1];" : "=l"(v) : "r"(sim_block_at(p)));
    asm volatile("st.relaxed.cta.shared.u64 [%0], %1;" ::"r"(sim_block_at(p)), "l"(v + by)
                 : "memory");
}

/* The sum of all lanes' values, for all. */
GPUNVME_FN uint32_t sim_warp_sum32(uint32_t mask, uint32_t value)
{
    return __reduce_add_sync(mask, value);
}

GPUNVME_FN void sim_block_sync(void)
{
    __syncthreads();
}

/* Among the blocks of the engine, in GPU memory. Nothing is ordered by these. */
GPUNVME_FN uint32_t sim_device_load32(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

GPUNVME_FN uint64_t sim_device_load64(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

GPUNVME_FN uint32_t sim_device_add32(uint32_t *p, uint32_t v)
{
    uint32_t old;
    asm volatile("atom.relaxed.gpu.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}

GPUNVME_FN uint64_t sim_device_add64(uint64_t *p, uint64_t v)
{
    uint64_t old;
    asm volatile("atom.relaxed.gpu.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
    return old;
}

GPUNVME_FN int sim_device_cas32(uint32_t *p, uint32_t expected, uint32_t v)
{
    uint32_t old;
    asm volatile("atom.relaxed.gpu.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(old)
                 : "l"(p), "r"(expected), "r"(v)
                 : "memory");
    return old == expected;
}

GPUNVME_FN int sim_device_cas64(uint64_t *p, uint64_t *expected, uint64_t v)
{
    uint64_t old, want = *expected;
    asm volatile("atom.relaxed.gpu.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(p), "l"(want), "l"(v)
                 : "memory");
    *expected = old;
    return old == want;
}

/*
 * All that this warp's lanes wrote or read before is done, for everybody, before what this lane
 * writes next: a release. Where there is such a fence it leaves the first-level cache alone, which
 * one that acquires empties. PTX ISA, "membar/fence": sm_90, PTX 8.6.
 */
GPUNVME_FN void sim_engine_fence(void)
{
#if __CUDA_ARCH__ >= 900 &&                                                                        \
    (__CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 8))
    asm volatile("fence.release.sys;" ::: "memory");
#else
    asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

/*
 * A completion queue entry in one store of 16 bytes: never seen half. After sim_engine_fence().
 * PTX ISA, "st", type .b128.
 */
GPUNVME_FN void sim_engine_store_cqe(struct gpunvme_cqe *to, uint32_t dw0, uint32_t dw2,
                                     uint32_t dw3)
{
    uint64_t low = dw0, high = dw2 | (uint64_t)dw3 << 32;

    asm volatile("{\n\t.reg .b128 entry;\n\t"
                 "mov.b128 entry, {%1, %2};\n\t"
                 "st.relaxed.sys.b128 [%0], entry;\n\t}" ::"l"(to),
                 "l"(low), "l"(high)
                 : "memory");
}

/* A command, once; past the first-level cache, where an older one could lie. */
GPUNVME_FN void sim_engine_load_sqe(struct gpunvme_sqe *to, const struct gpunvme_sqe *from)
{
    uint64_t *word = (uint64_t *)to;

#pragma unroll
    for (int i = 0; i < 4; i++)
        asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];"
                     : "=l"(word[2 * i]), "=l"(word[2 * i + 1])
                     : "l"((const char *)from + 16 * i)
                     : "memory");
}

GPUNVME_FN void sim_engine_sleep(uint32_t ns)
{
    __nanosleep(ns);
}

/* Another warp is about to do what this one waits for. */
GPUNVME_FN void sim_engine_yield(void)
{
}

#else /* the CPU */

GPUNVME_FN uint32_t sim_block_load32(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

GPUNVME_FN uint64_t sim_block_load64(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

GPUNVME_FN uint32_t sim_block_peek32(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

GPUNVME_FN void sim_block_store32(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

GPUNVME_FN void sim_block_set32(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}

GPUNVME_FN uint32_t sim_block_exchange32(uint32_t *p, uint32_t v)
{
    return __atomic_exchange_n(p, v, __ATOMIC_ACQUIRE);
}

GPUNVME_FN int sim_block_cas64(uint64_t *p, uint64_t *expected, uint64_t v)
{
    return __atomic_compare_exchange_n(p, expected, v, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

GPUNVME_FN int sim_block_cas64_relaxed(uint64_t *p, uint64_t *expected, uint64_t v)
{
    return __atomic_compare_exchange_n(p, expected, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

GPUNVME_FN uint32_t sim_block_or32(uint32_t *p, uint32_t v)
{
    return __atomic_fetch_or(p, v, __ATOMIC_RELAXED);
}

GPUNVME_FN void sim_block_and32(uint32_t *p, uint32_t v)
{
    __atomic_fetch_and(p, v, __ATOMIC_RELAXED);
}

GPUNVME_FN void sim_block_add64(uint64_t *p, uint64_t v)
{
    __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

GPUNVME_FN void sim_block_grow64(uint64_t *p, uint64_t by)
{
    __atomic_store_n(p, __atomic_load_n(p, __ATOMIC_RELAXED) + by, __ATOMIC_RELAXED);
}

GPUNVME_FN uint32_t sim_warp_sum32(uint32_t mask, uint32_t value)
{
    (void)mask;
    return value;
}

GPUNVME_FN void sim_block_sync(void)
{
}

GPUNVME_FN uint32_t sim_device_load32(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

GPUNVME_FN uint64_t sim_device_load64(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

GPUNVME_FN uint32_t sim_device_add32(uint32_t *p, uint32_t v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

GPUNVME_FN uint64_t sim_device_add64(uint64_t *p, uint64_t v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

GPUNVME_FN int sim_device_cas32(uint32_t *p, uint32_t expected, uint32_t v)
{
    return __atomic_compare_exchange_n(p, &expected, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

GPUNVME_FN int sim_device_cas64(uint64_t *p, uint64_t *expected, uint64_t v)
{
    return __atomic_compare_exchange_n(p, expected, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* The release store of the entry's last word does it. */
GPUNVME_FN void sim_engine_fence(void)
{
}

GPUNVME_FN void sim_engine_store_cqe(struct gpunvme_cqe *to, uint32_t dw0, uint32_t dw2,
                                     uint32_t dw3)
{
    uint32_t *word = (uint32_t *)to;

    word[0] = dw0;
    word[1] = 0;
    word[2] = dw2;
    __atomic_store_n(word + 3, dw3, __ATOMIC_RELEASE);
}

GPUNVME_FN void sim_engine_load_sqe(struct gpunvme_sqe *to, const struct gpunvme_sqe *from)
{
    *to = *from;
    /* The driver could change its memory meanwhile: all is decided on this one copy. */
    __asm__ volatile("" : "+m"(*to));
}

GPUNVME_FN void sim_engine_sleep(uint32_t ns)
{
    (void)ns;
    sched_yield();
}

/* Another thread is about to do what this one waits for, if only it may run. */
GPUNVME_FN void sim_engine_yield(void)
{
    sched_yield();
}

#endif
#endif
