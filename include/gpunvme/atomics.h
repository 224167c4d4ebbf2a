/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The atomics that the queue pair is written with, for the CPU and for the GPU.
 *
 * On the CPU only operations on objects order anything, so a thread sanitizer sees all of it. On
 * the GPU two functions are fences, or begin with one: gpunvme_mmio_write32(), and
 * gpunvme_fence_sys() for those that are named _fenced. Every operation has system scope, since the
 * other side may be the CPU, the GPU or the controller; but those named _gpu are for the threads of
 * one GPU among themselves.
 */
#ifndef GPUNVME_ATOMICS_H
#define GPUNVME_ATOMICS_H

#include <stdint.h>
#include <time.h>

#include "gpunvme/fn.h"

/*
 * What orders at a place that docs/ORDERING.md names. Only tests of that build with
 * -DGPUNVME_BREAK_<place>=0, (comma included), which selects `broken` there.
 */
#define GPUNVME_ORDER(place, whole, broken)                                                        \
    GPUNVME_ORDER_PICK(GPUNVME_BREAK_##place broken, whole, unused)
#define GPUNVME_ORDER_PICK(...)                  GPUNVME_ORDER_SECOND(__VA_ARGS__)
#define GPUNVME_ORDER_SECOND(first, second, ...) second

#if defined(__CUDA_ARCH__)

/* On the GPU: PTX memory model, scope .sys (PTX ISA, "Memory Consistency Model"). */
GPUNVME_FN uint32_t gpunvme_load_acquire32(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

GPUNVME_FN uint64_t gpunvme_load_acquire64(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

GPUNVME_FN uint64_t gpunvme_load_relaxed64(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

GPUNVME_FN uint32_t gpunvme_load_relaxed32(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

GPUNVME_FN void gpunvme_store_relaxed32(uint32_t *p, uint32_t v)
{
    asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

GPUNVME_FN void gpunvme_store_release32(uint32_t *p, uint32_t v)
{
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

GPUNVME_FN void gpunvme_store_relaxed64(uint64_t *p, uint64_t v)
{
    asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

GPUNVME_FN void gpunvme_store_release64(uint64_t *p, uint64_t v)
{
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

GPUNVME_FN uint32_t gpunvme_exchange32(uint32_t *p, uint32_t v)
{
    uint32_t old;
    asm volatile("atom.acq_rel.sys.exch.b32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}

GPUNVME_FN int gpunvme_cas64(uint64_t *p, uint64_t *expected, uint64_t v)
{
    uint64_t old, want = *expected;
    asm volatile("atom.acq_rel.sys.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(p), "l"(want), "l"(v)
                 : "memory");
    *expected = old;
    return old == want;
}

GPUNVME_FN uint64_t gpunvme_fetch_add64(uint64_t *p, uint64_t v)
{
    uint64_t old;
    asm volatile("atom.acq_rel.sys.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
    return old;
}

GPUNVME_FN uint64_t gpunvme_fetch_or64(uint64_t *p, uint64_t v)
{
    uint64_t old;
    asm volatile("atom.acq_rel.sys.or.b64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
    return old;
}

GPUNVME_FN uint32_t gpunvme_fetch_or32(uint32_t *p, uint32_t v)
{
    uint32_t old;
    asm volatile("atom.acq_rel.sys.or.b32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}

GPUNVME_FN uint32_t gpunvme_fetch_and32(uint32_t *p, uint32_t v)
{
    uint32_t old;
    asm volatile("atom.acq_rel.sys.and.b32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}

/*
 * Among the threads of one GPU, on words in its own memory: scope .gpu, whose fences do not wait
 * for stores on their way to the host. The suffix says so; on the CPU they are as the others. Those
 * that are `relaxed` order nothing on the GPU.
 *
 * Their atomics name the state space, so they take any address in global memory, but none in shared
 * or local memory. Otherwise the compiler checks after each 64-bit atomic whether it was in shared
 * memory, and so waits for it. For a counter in shared memory use those of system scope, above.
 */
GPUNVME_FN uint32_t gpunvme_load_acquire32_gpu(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

/* Four words at a multiple of 16 by one load; each is a load of its own to the memory model. */
GPUNVME_FN void gpunvme_load_four_acquire32_gpu(const uint32_t *p, uint32_t v[4])
{
    asm volatile("ld.acquire.gpu.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "l"(p)
                 : "memory");
}

GPUNVME_FN uint64_t gpunvme_load_acquire64_gpu(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

GPUNVME_FN void gpunvme_store_release32_gpu(uint32_t *p, uint32_t v)
{
    asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

GPUNVME_FN void gpunvme_store_release64_gpu(uint64_t *p, uint64_t v)
{
    asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

GPUNVME_FN uint32_t gpunvme_exchange32_gpu(uint32_t *p, uint32_t v)
{
    uint32_t old;
    asm volatile("atom.acq_rel.gpu.global.exch.b32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(__cvta_generic_to_global(p)), "r"(v)
                 : "memory");
    return old;
}

GPUNVME_FN uint32_t gpunvme_exchange32_relaxed_gpu(uint32_t *p, uint32_t v)
{
    uint32_t old;
    asm volatile("atom.relaxed.gpu.global.exch.b32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(__cvta_generic_to_global(p)), "r"(v)
                 : "memory");
    return old;
}

GPUNVME_FN int gpunvme_cas64_relaxed_gpu(uint64_t *p, uint64_t *expected, uint64_t v)
{
    uint64_t old, want = *expected;
    asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(__cvta_generic_to_global(p)), "l"(want), "l"(v)
                 : "memory");
    *expected = old;
    return old == want;
}

GPUNVME_FN uint64_t gpunvme_fetch_add64_relaxed_gpu(uint64_t *p, uint64_t v)
{
    uint64_t old;
    asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(__cvta_generic_to_global(p)), "l"(v)
                 : "memory");
    return old;
}

GPUNVME_FN uint32_t gpunvme_fetch_or32_relaxed_gpu(uint32_t *p, uint32_t v)
{
    uint32_t old;
    asm volatile("atom.relaxed.gpu.global.or.b32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(__cvta_generic_to_global(p)), "r"(v)
                 : "memory");
    return old;
}

GPUNVME_FN uint64_t gpunvme_fetch_or64_relaxed_gpu(uint64_t *p, uint64_t v)
{
    uint64_t old;
    asm volatile("atom.relaxed.gpu.global.or.b64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(__cvta_generic_to_global(p)), "l"(v)
                 : "memory");
    return old;
}

GPUNVME_FN uint64_t gpunvme_fetch_or64_acquire_gpu(uint64_t *p, uint64_t v)
{
    uint64_t old;
    asm volatile("atom.acquire.gpu.global.or.b64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(__cvta_generic_to_global(p)), "l"(v)
                 : "memory");
    return old;
}

GPUNVME_FN uint32_t gpunvme_fetch_or32_acquire_gpu(uint32_t *p, uint32_t v)
{
    uint32_t old;
    asm volatile("atom.acquire.gpu.global.or.b32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(__cvta_generic_to_global(p)), "r"(v)
                 : "memory");
    return old;
}

GPUNVME_FN uint32_t gpunvme_fetch_or32_gpu(uint32_t *p, uint32_t v)
{
    uint32_t old;
    asm volatile("atom.acq_rel.gpu.global.or.b32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(__cvta_generic_to_global(p)), "r"(v)
                 : "memory");
    return old;
}

/*
 * Orders what this thread has read and written before it, and what it does with `_fenced` after it:
 * an acquire of the one, a release of the other, for all lanes at the price of one. On the CPU
 * loads and stores have these orders themselves.
 */
GPUNVME_FN void gpunvme_fence_sys(void)
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* After gpunvme_fence_sys(), which is the acquire. */
GPUNVME_FN uint64_t gpunvme_load64_fenced_gpu(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

/* After gpunvme_fence_sys(), which is the release. */
GPUNVME_FN void gpunvme_store64_fenced_gpu(uint64_t *p, uint64_t v)
{
    asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

GPUNVME_FN void gpunvme_store32_relaxed_gpu(uint32_t *p, uint32_t v)
{
    asm volatile("st.relaxed.gpu.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

GPUNVME_FN void gpunvme_store64_relaxed_gpu(uint64_t *p, uint64_t v)
{
    asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

/* A doorbell that tells of nothing in memory, or after gpunvme_fence_sys(). */
GPUNVME_FN void gpunvme_mmio_write32_fenced(volatile uint32_t *p, uint32_t v)
{
    asm volatile("st.mmio.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

/* 64 bytes by four vector stores; both at a multiple of 16. */
GPUNVME_FN void gpunvme_store_64_bytes(void *to, const void *from)
{
    for (int i = 0; i < 4; i++)
        ((uint4 *)to)[i] = ((const uint4 *)from)[i];
}

/* Shadow doorbells: a store and a later load of another word that must not pass each other. */
GPUNVME_FN void gpunvme_store_seq_cst32(volatile uint32_t *p, uint32_t v)
{
    asm volatile("fence.sc.sys; st.relaxed.sys.u32 [%0], %1; fence.sc.sys;" ::"l"(p), "r"(v)
                 : "memory");
}

GPUNVME_FN uint32_t gpunvme_load_seq_cst32(const volatile uint32_t *p)
{
    uint32_t v;
    asm volatile("fence.sc.sys; ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

/*
 * A doorbell. What the controller must find in memory once it sees this store (the entries of the
 * submission queue; on the CQ side, nothing) was written before it, by this thread or by threads
 * that this one acquired from: the system fence orders all of that before the store.
 */
GPUNVME_FN void gpunvme_mmio_write32(volatile uint32_t *p, uint32_t v)
{
    asm volatile("fence.acq_rel.sys; st.mmio.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v)
                 : "memory");
}

GPUNVME_FN void gpunvme_prefetch_write(const void *p)
{
    (void)p;
}

GPUNVME_FN uint64_t gpunvme_clock_ns(void)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* A number that grows with time, a few hundred or thousand in a microsecond, and costs little. */
GPUNVME_FN uint32_t gpunvme_noise32(void)
{
    uint32_t t;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(t));
    return t;
}

GPUNVME_FN void gpunvme_relax(void)
{
    __nanosleep(32);
}

/* Rests for about `ns`, at most 1,000,000. */
GPUNVME_FN void gpunvme_relax_for(uint32_t ns)
{
    __nanosleep(ns);
}

#else /* the CPU */

GPUNVME_FN uint32_t gpunvme_load_acquire32(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

GPUNVME_FN uint64_t gpunvme_load_acquire64(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

GPUNVME_FN uint64_t gpunvme_load_relaxed64(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

GPUNVME_FN uint32_t gpunvme_load_relaxed32(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

GPUNVME_FN void gpunvme_store_relaxed32(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}

GPUNVME_FN void gpunvme_store_release32(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

GPUNVME_FN void gpunvme_store_relaxed64(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}

GPUNVME_FN void gpunvme_store_release64(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

GPUNVME_FN uint32_t gpunvme_exchange32(uint32_t *p, uint32_t v)
{
    return __atomic_exchange_n(p, v, __ATOMIC_ACQ_REL);
}

GPUNVME_FN int gpunvme_cas64(uint64_t *p, uint64_t *expected, uint64_t v)
{
    return __atomic_compare_exchange_n(p, expected, v, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

GPUNVME_FN uint64_t gpunvme_fetch_add64(uint64_t *p, uint64_t v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}

GPUNVME_FN uint64_t gpunvme_fetch_or64(uint64_t *p, uint64_t v)
{
    return __atomic_fetch_or(p, v, __ATOMIC_ACQ_REL);
}

GPUNVME_FN uint32_t gpunvme_fetch_or32(uint32_t *p, uint32_t v)
{
    return __atomic_fetch_or(p, v, __ATOMIC_ACQ_REL);
}

GPUNVME_FN uint32_t gpunvme_load_acquire32_gpu(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

GPUNVME_FN void gpunvme_load_four_acquire32_gpu(const uint32_t *p, uint32_t v[4])
{
    for (int i = 0; i < 4; i++)
        v[i] = GPUNVME_ORDER(LOOK, gpunvme_load_acquire32_gpu, gpunvme_load_relaxed32)(p + i);
}

GPUNVME_FN uint64_t gpunvme_load_acquire64_gpu(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

GPUNVME_FN void gpunvme_store_release32_gpu(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

GPUNVME_FN void gpunvme_store_release64_gpu(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

GPUNVME_FN uint32_t gpunvme_exchange32_gpu(uint32_t *p, uint32_t v)
{
    return __atomic_exchange_n(p, v, __ATOMIC_ACQ_REL);
}

GPUNVME_FN uint32_t gpunvme_exchange32_relaxed_gpu(uint32_t *p, uint32_t v)
{
    return __atomic_exchange_n(p, v, __ATOMIC_ACQ_REL);
}

GPUNVME_FN int gpunvme_cas64_relaxed_gpu(uint64_t *p, uint64_t *expected, uint64_t v)
{
    return __atomic_compare_exchange_n(p, expected, v, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

GPUNVME_FN uint64_t gpunvme_fetch_add64_relaxed_gpu(uint64_t *p, uint64_t v)
{
    return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}

GPUNVME_FN uint32_t gpunvme_fetch_or32_relaxed_gpu(uint32_t *p, uint32_t v)
{
    return __atomic_fetch_or(p, v, __ATOMIC_ACQ_REL);
}

GPUNVME_FN uint64_t gpunvme_fetch_or64_relaxed_gpu(uint64_t *p, uint64_t v)
{
    return __atomic_fetch_or(p, v, __ATOMIC_ACQ_REL);
}

GPUNVME_FN uint64_t gpunvme_fetch_or64_acquire_gpu(uint64_t *p, uint64_t v)
{
    return __atomic_fetch_or(p, v, __ATOMIC_ACQ_REL);
}

GPUNVME_FN uint32_t gpunvme_fetch_or32_acquire_gpu(uint32_t *p, uint32_t v)
{
    return __atomic_fetch_or(p, v, __ATOMIC_ACQ_REL);
}

GPUNVME_FN uint32_t gpunvme_fetch_or32_gpu(uint32_t *p, uint32_t v)
{
    return __atomic_fetch_or(p, v, __ATOMIC_ACQ_REL);
}

GPUNVME_FN void gpunvme_fence_sys(void)
{
}

GPUNVME_FN uint64_t gpunvme_load64_fenced_gpu(const uint64_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

GPUNVME_FN void gpunvme_store64_fenced_gpu(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, GPUNVME_ORDER(STATUS, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

GPUNVME_FN void gpunvme_store32_relaxed_gpu(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

GPUNVME_FN void gpunvme_store64_relaxed_gpu(uint64_t *p, uint64_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

/* By words: gcc's ThreadSanitizer does not see a memcpy() that becomes vector stores. */
GPUNVME_FN void gpunvme_store_64_bytes(void *to, const void *from)
{
    typedef uint64_t __attribute__((may_alias)) word;

    for (int i = 0; i < 8; i++)
        ((word *)to)[i] = ((const word *)from)[i];
}

GPUNVME_FN uint32_t gpunvme_fetch_and32(uint32_t *p, uint32_t v)
{
    return __atomic_fetch_and(p, v, __ATOMIC_ACQ_REL);
}

GPUNVME_FN void gpunvme_store_seq_cst32(volatile uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);
}

GPUNVME_FN uint32_t gpunvme_load_seq_cst32(const volatile uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}

/*
 * A doorbell. What the controller must find in memory once it sees this store was written before
 * it. On x86 a store to uncached memory waits for all earlier stores; on Arm a release store
 * orders only normal memory, so device memory takes a barrier of its own.
 */
GPUNVME_FN void gpunvme_mmio_write32(volatile uint32_t *p, uint32_t v)
{
#if defined(__aarch64__)
    __asm__ volatile("dmb oshst" ::: "memory");
#endif
    __atomic_store_n(p, v, GPUNVME_ORDER(DOORBELL, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

GPUNVME_FN void gpunvme_mmio_write32_fenced(volatile uint32_t *p, uint32_t v)
{
    gpunvme_mmio_write32(p, v);
}

/* Asks for a cache line that will be written soon. */
GPUNVME_FN void gpunvme_prefetch_write(const void *p)
{
#if defined(__x86_64__)
    /* What the compiler makes of __builtin_prefetch(p, 1) here gets the line for reading only. */
    __asm__ volatile("prefetchw %0" ::"m"(*(const char *)p));
#else
    __builtin_prefetch(p, 1);
#endif
}

#ifndef CLOCK_MONOTONIC /* -std=c11 hides what POSIX adds to <time.h>: here as Linux has it */
#define CLOCK_MONOTONIC 1
extern int clock_gettime(int clock, struct timespec *t);
#endif

GPUNVME_FN uint64_t gpunvme_clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

GPUNVME_FN uint32_t gpunvme_noise32(void)
{
    return (uint32_t)gpunvme_clock_ns();
}

GPUNVME_FN void gpunvme_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

GPUNVME_FN void gpunvme_relax_for(uint32_t ns)
{
    for (; ns > 32; ns -= 32)
        gpunvme_relax();
}

#endif
#endif
