/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Every call of device.cuh from kernels, against the software controller on CPU threads, verified
 * word by word. Threads diverge, queues are smaller than the number of threads, and who reaps
 * changes. An argument replaces the controller's URI.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gpu/gpu_test.h"
#include "gpunvme/device.cuh"

#define BLOCKS  2u
#define THREADS 80u /* two warps and a half */
#define ALL     (BLOCKS * THREADS)
#define NBYTES                                                                                     \
    (UINT64_C(16) << 20) /* of the namespace: the lower half is read, the upper written */
#define HALF  (NBYTES / 2 / 512)
#define PART  16384u              /* bytes of the buffer for each thread */
#define SHARE (UINT64_C(3) << 20) /* and for each block of threads, behind those */

struct outcome {
    unsigned calls, errors, wrong, last_error, stop, done;
};

/* The byte at a place of the lower half, and of the upper one after a write with `salt`. */
static __host__ __device__ uint8_t byte_at(uint64_t at, uint64_t salt)
{
    uint64_t word = (at / 8 + salt) * UINT64_C(0x9e3779b97f4a7c15);

    return (uint8_t)(word >> at % 8 * 8);
}

static __device__ void count(struct outcome *o, int err, int expected)
{
    atomicAdd(&o->calls, 1);
    if (err == expected)
        return;
    atomicAdd(&o->errors, 1);
    o->last_error = (unsigned)err;
}

/* Thread `me` of n looks at its share of nbytes at `off`, which came from byte `at`. */
static __device__ void verify(struct outcome *o, const struct gpunvme_dev_buf *buf, uint64_t off,
                              uint64_t at, uint64_t nbytes, uint64_t salt, unsigned me, unsigned n)
{
    unsigned wrong = 0;

    for (uint64_t i = me; i < nbytes; i += n)
        wrong += buf->data[off + i] != byte_at(at + i, salt);
    if (wrong)
        atomicAdd(&o->wrong, wrong);
}

static __device__ void fill(const struct gpunvme_dev_buf *buf, uint64_t off, uint64_t at,
                            uint64_t nbytes, uint64_t salt, unsigned me, unsigned n)
{
    for (uint64_t i = me; i < nbytes; i += n)
        buf->data[off + i] = byte_at(at + i, salt);
}

static __device__ unsigned thread_index(void)
{
    return blockIdx.x * blockDim.x + threadIdx.x;
}

/* Each in its own branch: one block; many by a list; two tokens, tested in the other order. */
static __global__ void threads_read(struct gpunvme_dev_ns ns, struct gpunvme_dev_buf buf,
                                    struct outcome *o)
{
    unsigned t = thread_index();
    uint64_t lba = t * 7919 % (HALF - 32), off = (uint64_t)t * PART;

    for (unsigned i = 0; i < 20; i++, lba = (lba * 31 + 17) % (HALF - 32)) {
        if (t % 3 == 0) {
            count(o, gpunvme_dev_read(&ns, lba, 1, &buf, off, 0), GPUNVME_OK);
            verify(o, &buf, off, lba * 512, 512, 0, 0, 1);
        } else if (t % 3 == 1) {
            count(o, gpunvme_dev_read(&ns, lba, 25, &buf, off + 4, 0), GPUNVME_OK);
            verify(o, &buf, off + 4, lba * 512, 25 * 512, 0, 0, 1);
        } else {
            struct gpunvme_dev_token a, b;
            int err;

            err = gpunvme_dev_submit_read(&ns, lba, 1, &buf, off, &a);
            if (err == GPUNVME_ERR_AGAIN) {
                count(o, gpunvme_dev_flush(&ns, 0), GPUNVME_OK);
                continue;
            }
            count(o, err, GPUNVME_OK);
            /* Holding a token, it must not insist on a second one. */
            err = gpunvme_dev_submit_read(&ns, lba + 9, 2, &buf, off + 512, &b);
            if (!err) {
                count(o, gpunvme_dev_wait(&ns, &b, 0), GPUNVME_OK);
                verify(o, &buf, off + 512, (lba + 9) * 512, 1024, 0, 0, 1);
            }
            while ((err = gpunvme_dev_test(&a)) == GPUNVME_ERR_AGAIN)
                gpunvme_relax();
            count(o, err, GPUNVME_OK);
            verify(o, &buf, off, lba * 512, 512, 0, 0, 1);
        }
    }
}

/* Up to four commands of each lane with one doorbell, written and read back. */
static __global__ void threads_submit_several(struct gpunvme_dev_ns ns, struct gpunvme_dev_buf buf,
                                              struct outcome *o)
{
    unsigned t = thread_index();
    uint64_t lba = HALF + t * 16, off = (uint64_t)t * PART;
    struct gpunvme_dev_token tokens[4];
    struct gpunvme_dev_vec vec[4];
    uint32_t n;

    for (unsigned i = 0; i < 4; i++)
        vec[i] = {lba + 4 * i, off + 2048 * i, 4};
    for (unsigned i = 0; i < 20; i++) {
        unsigned most = 1 + (t + i) % 4;

        for (unsigned is_read = 0; is_read < 2; is_read++) {
            int err;

            fill(&buf, off, is_read ? 0 : lba * 512, 8192, is_read ? 99 : i, 0, 1);
            err = is_read ? gpunvme_dev_submit_readv(&ns, vec, most, &buf, tokens, &n)
                          : gpunvme_dev_submit_writev(&ns, vec, most, &buf, 0, tokens, &n);
            count(o, err == GPUNVME_ERR_AGAIN && !n ? (int)GPUNVME_OK : err, GPUNVME_OK);
            for (unsigned k = 0; k < n; k++)
                count(o, gpunvme_dev_wait(&ns, &tokens[k], 0), GPUNVME_OK);
            /* Those without a slot: it holds none now, and may wait for one. */
            err = is_read ? gpunvme_dev_readv(&ns, vec + n, most - n, &buf, 0)
                          : gpunvme_dev_writev(&ns, vec + n, most - n, &buf, 0, 0);
            count(o, err, GPUNVME_OK);
        }
        verify(o, &buf, off, lba * 512, most * 2048, i, 0, 1);
    }
}

/* Blocks of its own of the upper half, written and read back. */
static __global__ void threads_write(struct gpunvme_dev_ns ns, struct gpunvme_dev_buf buf,
                                     struct outcome *o)
{
    unsigned t = thread_index();
    uint64_t lba = HALF + t * 16, off = (uint64_t)t * PART;
    struct gpunvme_dev_vec own[] = {{lba, off, 3}, {lba + 8, off + 4096, 5}};

    for (unsigned nlb = 1; nlb <= 16; nlb += 3) {
        fill(&buf, off, lba * 512, nlb * 512, nlb, 0, 1);
        count(o, gpunvme_dev_write(&ns, lba, nlb, &buf, off, t % 2 ? GPUNVME_IO_FUA : 0, 0),
              GPUNVME_OK);
        fill(&buf, off, 0, nlb * 512, 99, 0, 1);
        count(o, gpunvme_dev_read(&ns, lba, nlb, &buf, off, 0), GPUNVME_OK);
        verify(o, &buf, off, lba * 512, nlb * 512, nlb, 0, 1);
    }
    count(o, gpunvme_dev_flush(&ns, 0), GPUNVME_OK);
    fill(&buf, off, 0, 16 * 512, 99, 0, 1);
    count(o, gpunvme_dev_readv(&ns, own, 2, &buf, 0), GPUNVME_OK);
    verify(o, &buf, off, lba * 512, 3 * 512, 16, 0, 1);
    verify(o, &buf, off + 4096, (lba + 8) * 512, 5 * 512, 16, 0, 1);
    count(o, gpunvme_dev_writev(&ns, own, 2, &buf, 0, 0), GPUNVME_OK);
    count(o, gpunvme_dev_read(&ns, lba, 16, &buf, off, 0), GPUNVME_OK);
    verify(o, &buf, off, lba * 512, 16 * 512, 16, 0, 1);
}

static __global__ void threads_move_bytes(struct gpunvme_dev_ns ns, struct gpunvme_dev_buf buf,
                                          struct outcome *o)
{
    unsigned t = thread_index();
    uint64_t at = HALF * 512 + t * 8192 + t % 509, off = (uint64_t)t * PART + t % 7;

    for (unsigned n = 1; n < 3000; n = n * 3 + 1) {
        fill(&buf, off, at, n, n, 0, 1);
        count(o, gpunvme_dev_write_bytes(&ns, at, n, &buf, off, 0, 0), GPUNVME_OK);
        fill(&buf, off + 4000, 0, n, 99, 0, 1);
        count(o, gpunvme_dev_read_bytes(&ns, at, n, &buf, off + 4000, 0), GPUNVME_OK);
        verify(o, &buf, off + 4000, at, n, n, 0, 1);
    }
}

static __global__ void warps_share(struct gpunvme_dev_ns ns, struct gpunvme_dev_buf buf,
                                   struct outcome *o)
{
    unsigned warp = gpunvme_dev_warp_index(), lane = threadIdx.x % 32;
    unsigned lanes = __popc(__activemask());
    uint64_t off = (uint64_t)warp * 32 * PART, lba = warp * 1000;

    for (unsigned nlb = 1; nlb < 700; nlb = nlb * 5 + 3) {
        count(o, gpunvme_dev_warp_read(&ns, lba, nlb, &buf, off, 0), GPUNVME_OK);
        verify(o, &buf, off, lba * 512, nlb * 512, 0, lane, lanes);
        __syncwarp();
        fill(&buf, off, (HALF + lba) * 512, nlb * 512, nlb, lane, lanes);
        count(o, gpunvme_dev_warp_write(&ns, HALF + lba, nlb, &buf, off, 0, 0), GPUNVME_OK);
        count(o,
              gpunvme_dev_warp_read_bytes(&ns, (HALF + lba) * 512 + 5, nlb * 512 - 9, &buf, off + 1,
                                          0),
              GPUNVME_OK);
        verify(o, &buf, off + 1, (HALF + lba) * 512 + 5, nlb * 512 - 9, nlb, lane, lanes);
        __syncwarp();
    }
    count(o, gpunvme_dev_warp_flush(&ns, 0), GPUNVME_OK);
    count(o, gpunvme_dev_warp_read(&ns, ns.nblocks - 1, 2, &buf, off, 0), GPUNVME_ERR_RANGE);
}

static __global__ void blocks_share(struct gpunvme_dev_ns ns, struct gpunvme_dev_buf buf,
                                    struct gpunvme_dev_vec *vecs, struct outcome *o)
{
    uint64_t off = (uint64_t)ALL * PART + blockIdx.x * SHARE, lba = blockIdx.x * 6000;
    struct gpunvme_dev_vec *vec = vecs + blockIdx.x * 200;

    for (unsigned nlb = 1; nlb < 6000; nlb = nlb * 4 + 7) {
        count(o, gpunvme_dev_block_read(&ns, lba, nlb, &buf, off, 0), GPUNVME_OK);
        verify(o, &buf, off, lba * 512, nlb * 512, 0, threadIdx.x, THREADS);
        __syncthreads();
        fill(&buf, off, (HALF + lba) * 512, nlb * 512, nlb, threadIdx.x, THREADS);
        count(o, gpunvme_dev_block_write(&ns, HALF + lba, nlb, &buf, off, 0, 0), GPUNVME_OK);
        fill(&buf, off, 0, nlb * 512, 99, threadIdx.x, THREADS);
        __syncthreads();
        count(o, gpunvme_dev_block_read(&ns, HALF + lba, nlb, &buf, off, 0), GPUNVME_OK);
        verify(o, &buf, off, (HALF + lba) * 512, nlb * 512, nlb, threadIdx.x, THREADS);
        __syncthreads();
    }
    count(o, gpunvme_dev_block_flush(&ns, 0), GPUNVME_OK);
    for (unsigned i = threadIdx.x; i < 200; i += THREADS) {
        vec[i].slba = i * 7919 % (HALF - 16);
        vec[i].off = off + i * 8192;
        vec[i].nlb = i % 16;
    }
    count(o, gpunvme_dev_block_readv(&ns, vec, 200, &buf, 0), GPUNVME_OK);
    for (unsigned i = 0; i < 200; i++)
        verify(o, &buf, vec[i].off, vec[i].slba * 512, vec[i].nlb * 512, 0, threadIdx.x, THREADS);
    __syncthreads();
    if (threadIdx.x == 77)
        vec[150].slba = ns.nblocks;
    /* One element is wrong, and everybody gets to know. */
    count(o, gpunvme_dev_block_readv(&ns, vec, 200, &buf, 0), GPUNVME_ERR_RANGE);
}

/* The last block of the grid reaps, the others read; it stops when they are done. */
static __global__ void one_warp_reaps(struct gpunvme_dev_ns ns, struct gpunvme_dev_buf buf,
                                      struct outcome *o)
{
    unsigned t = thread_index();

    if (blockIdx.x == BLOCKS) {
        if (threadIdx.x < 32)
            gpunvme_dev_reap(&ns, 0, 1, &o->stop);
        return;
    }
    for (unsigned i = 0; i < 20; i++) {
        uint64_t lba = (t + i * ALL) % HALF;

        count(o, gpunvme_dev_read(&ns, lba, 1, &buf, (uint64_t)t * PART, 0), GPUNVME_OK);
        verify(o, &buf, (uint64_t)t * PART, lba * 512, 512, 0, 0, 1);
    }
    if (atomicAdd(&o->done, 1) == ALL - 1)
        gpunvme_store_release32(&o->stop, 1);
}

/* Reads of one block end by an injected status: the right one, in all threads. */
static __global__ void blocks_fail(struct gpunvme_dev_ns ns, struct gpunvme_dev_buf buf,
                                   struct outcome *o)
{
    uint64_t off = (uint64_t)ALL * PART + blockIdx.x * SHARE;
    int status = GPUNVME_ERR_NVME(GPUNVME_SC_UNRECOVERED_READ);

    count(o, gpunvme_dev_block_read(&ns, 0, 3000, &buf, off, 0), status);
    count(o, gpunvme_dev_warp_read(&ns, 1000, 200, &buf, off, 0), status);
    count(o, gpunvme_dev_read(&ns, threadIdx.x + 1000 - THREADS / 2, 1, &buf, off, 0),
          threadIdx.x >= THREADS / 2 && threadIdx.x < THREADS / 2 + 100 ? status : GPUNVME_OK);
}

/* --- the host --------------------------------------------------------------------------------- */

struct rig {
    struct gpunvme_ctrl *ctrl;
    const struct gpunvme_ns *ns;
    struct gpunvme_device *dev;
    struct gpunvme_dev_ns handle;
    struct gpunvme_buf data, out, vecs;
    struct gpunvme_dev_buf view;
};

static void fill_pattern(void *bytes, size_t nbytes)
{
    for (uint64_t i = 0; i < nbytes; i++)
        ((uint8_t *)bytes)[i] = byte_at(i, 0);
}

static int rig_open(struct rig *r, const char *uri, enum gpunvme_reaper reaper, uint32_t entries)
{
    struct gpunvme_device_opts opts;

    memset(r, 0, sizeof(*r));
    gpunvme_device_opts_init(&opts);
    opts.reaper = reaper;
    opts.queues = 2;
    opts.entries = entries;
    return check(gpunvme_ctrl_open_uri(uri, NULL, &r->ctrl), "controller") ||
           check(gpunvme_ctrl_ns(r->ctrl, 1, &r->ns), "namespace") ||
           check(write_all(r->ctrl, r->ns, NBYTES / 2, fill_pattern), "writing") ||
           check(gpunvme_device_open(r->ctrl, &opts, &r->dev), "device") ||
           check(gpunvme_device_ns(r->dev, r->ns, &r->handle), "handle") ||
           check(gpunvme_device_alloc(r->dev, ALL * PART + BLOCKS * SHARE, &r->data), "data") ||
           check(gpunvme_device_buf(r->dev, &r->data, &r->view), "view") ||
           check(gpunvme_mem_alloc(4096, GPUNVME_MEM_GPU, &r->out), "outcome") ||
           check(gpunvme_mem_alloc(65536, GPUNVME_MEM_GPU, &r->vecs), "vectors");
}

static void rig_close(struct rig *r)
{
    gpunvme_device_free(r->dev, &r->data);
    check(gpunvme_device_close(r->dev), "closing the device");
    gpunvme_mem_free(&r->out);
    gpunvme_mem_free(&r->vecs);
    check_violations(r->ctrl);
    check(gpunvme_ctrl_close(r->ctrl), "closing the controller");
}

static struct outcome *begin(struct rig *r)
{
    check(gpunvme_mem_fill(r->out.gpu, GPUNVME_MEM_GPU, 0, 4096), "fill");
    return (struct outcome *)r->out.gpu;
}

/* Waits at most a minute: a kernel that hangs is what must not be. */
static void end(struct rig *r, const char *what, unsigned reaper)
{
    cudaError_t err = cudaGetLastError();
    struct outcome o;

    if (!err)
        err = cudaStreamQuery(0);
    for (unsigned i = 0; err == cudaErrorNotReady; i++, err = cudaStreamQuery(0)) {
        if (i == 60000) {
            fprintf(stderr, "%s: the kernel hangs\n", what);
            _exit(1);
        }
        usleep(1000);
    }
    if (err != cudaSuccess && ++failures)
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(err));
    check(gpunvme_mem_copy(&o, GPUNVME_MEM_HOST, r->out.gpu, GPUNVME_MEM_GPU, sizeof(o)), "copy");
    printf("%s, reaper %u: %u calls, %u errors (last %d), %u wrong bytes\n", what, reaper, o.calls,
           o.errors, (int)o.last_error, o.wrong);
    failures += !o.calls || o.errors || o.wrong;
}

static void run_all(const char *uri, enum gpunvme_reaper reaper, uint32_t entries)
{
    struct rig r;

    printf("queues of %u entries\n", entries);
    if (rig_open(&r, uri, reaper, entries))
        return;
    if (reaper == GPUNVME_REAPER_WARP) {
        one_warp_reaps<<<BLOCKS + 1, THREADS>>>(r.handle, r.view, begin(&r));
        end(&r, "one_warp_reaps", reaper);
        rig_close(&r);
        return;
    }
    threads_read<<<BLOCKS, THREADS>>>(r.handle, r.view, begin(&r));
    end(&r, "threads_read", reaper);
    threads_write<<<BLOCKS, THREADS>>>(r.handle, r.view, begin(&r));
    end(&r, "threads_write", reaper);
    threads_submit_several<<<BLOCKS, THREADS>>>(r.handle, r.view, begin(&r));
    end(&r, "threads_submit_several", reaper);
    threads_move_bytes<<<BLOCKS, THREADS>>>(r.handle, r.view, begin(&r));
    end(&r, "threads_move_bytes", reaper);
    warps_share<<<BLOCKS, THREADS>>>(r.handle, r.view, begin(&r));
    end(&r, "warps_share", reaper);
    blocks_share<<<BLOCKS, THREADS>>>(r.handle, r.view, (struct gpunvme_dev_vec *)r.vecs.gpu,
                                      begin(&r));
    end(&r, "blocks_share", reaper);
    if (gpunvme_transport_sim(gpunvme_ctrl_transport(r.ctrl)) &&
        !check(gpunvme_sim_fault(gpunvme_transport_sim(gpunvme_ctrl_transport(r.ctrl)),
                                 "status=2/81:lba=1000-1099:read"),
               "fault")) {
        blocks_fail<<<BLOCKS, THREADS>>>(r.handle, r.view, begin(&r));
        end(&r, "blocks_fail", reaper);
    }
    rig_close(&r);
}

int main(int argc, char **argv)
{
    const char *uri = argc > 1 ? argv[1] : "sim:size=16M,threads=2";

    if (gpunvme_mem_gpu_is_host()) {
        printf("SKIP: no GPU: %s\n", gpunvme_mem_gpu_why_not());
        return 77;
    }
    run_all(uri, GPUNVME_REAPER_WAITERS, 256);
    run_all(uri, GPUNVME_REAPER_WAITERS, 8);
    run_all(uri, GPUNVME_REAPER_WARP, 64);
    run_all(uri, GPUNVME_REAPER_CPU, 64);
    return failures != 0;
}
