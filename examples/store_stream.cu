/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A read in the order of a CUDA stream, and a kernel behind it that uses the bytes: the thread that
 * submits both waits for neither.
 *
 *   store_stream [URI [BYTES]]     default: this program's own file, 1 MiB
 *
 * The kernel adds up the bytes; the CPU does, too, and the two are compared. In a real program
 * other work stands before the read on the stream: the read begins when that has ended.
 */
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime_api.h>

#include <gpunvme/memory.h>
#include <gpunvme/storage.h>

static __global__ void add_up(const unsigned char *bytes, size_t n, unsigned long long *sum)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, step = (size_t)gridDim.x * blockDim.x;
    unsigned long long mine = 0;

    for (; i < n; i += step)
        mine += bytes[i];
    atomicAdd(sum, mine);
}

static void check(gpunvme_err_t err)
{
    if (err == GPUNVME_OK)
        return;
    fprintf(stderr, "store_stream: %s: %s (%s)\n", gpunvme_err_detail(), gpunvme_err_text(err),
            gpunvme_err_name(err));
    exit(1);
}

static void check_cuda(cudaError_t err)
{
    if (err == cudaSuccess)
        return;
    fprintf(stderr, "store_stream: CUDA: %s\n", cudaGetErrorString(err));
    exit(1);
}

/* The same by the CPU, of what the store gives it. */
static unsigned long long expected(struct gpunvme_store *store, size_t n)
{
    unsigned char *bytes = (unsigned char *)malloc(n);
    unsigned long long sum = 0;

    check(bytes ? GPUNVME_OK : GPUNVME_ERR_NOMEM);
    check(gpunvme_store_read(store, 0, bytes, GPUNVME_MEM_HOST, n, NULL));
    for (size_t i = 0; i < n; i++)
        sum += bytes[i];
    free(bytes);
    return sum;
}

/*
 * CUDA loads a kernel when it is first launched, and may wait for all streams of the context to do
 * so, with the context locked: for the one that waits for the read, too, which then can't end. So
 * what is launched behind a transfer is loaded before it is submitted.
 */
static void load_kernel(void)
{
    struct cudaFuncAttributes attributes;

    check_cuda(cudaFuncGetAttributes(&attributes, add_up));
}

int main(int argc, char **argv)
{
    const char *uri = argc > 1 ? argv[1] : "/proc/self/exe";
    uint64_t nbytes = argc > 2 ? strtoull(argv[2], NULL, 0) : 1u << 20, size;
    struct gpunvme_store *store;
    struct gpunvme_io io = {};
    unsigned long long sum = 0;
    struct gpunvme_buf data, result;
    struct gpunvme_order order = {};
    cudaStream_t stream;

    if (gpunvme_mem_gpu_is_host()) {
        printf("SKIP: no GPU: %s\n", gpunvme_mem_gpu_why_not());
        return 77;
    }
    check(gpunvme_open(uri, 0, &store));
    check(gpunvme_store_size(store, &size));
    nbytes = nbytes < size ? nbytes : size;
    check(gpunvme_mem_alloc(nbytes, GPUNVME_MEM_GPU, &data));
    check(gpunvme_mem_alloc(sizeof(sum), GPUNVME_MEM_GPU, &result)); /* zeroed */
    check(gpunvme_register(NULL, data.gpu, nbytes, GPUNVME_MEM_GPU));
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    load_kernel();

    io.store = store;
    io.op = GPUNVME_OP_READ;
    io.mem = GPUNVME_MEM_GPU;
    io.ptr = data.gpu;
    io.nbytes = nbytes;
    /* Behind what is on the stream, and before what comes next. */
    order.flags = GPUNVME_AFTER_STREAM | GPUNVME_BEFORE_STREAM;
    order.stream = stream;
    check(gpunvme_io_submit_ordered(&io, 1, NULL, &order));
    add_up<<<64, 256, 0, stream>>>((const unsigned char *)data.gpu, nbytes,
                                   (unsigned long long *)result.gpu);
    check_cuda(cudaGetLastError());
    check_cuda(cudaMemcpyAsync(&sum, result.gpu, sizeof(sum), cudaMemcpyDeviceToHost, stream));
    check_cuda(cudaStreamSynchronize(stream));
    /* The kernel ran even if the read went wrong: this tells. */
    check(gpunvme_io_test(&io));
    check(io.done == nbytes && sum == expected(store, nbytes) ? GPUNVME_OK : GPUNVME_ERR_VERIFY);
    printf("%zu bytes of %s, sum %llu by the GPU and by the CPU\n", io.done, uri, sum);

    check_cuda(cudaStreamDestroy(stream));
    check(gpunvme_unregister(NULL, data.gpu));
    check(gpunvme_close(store));
    check(gpunvme_mem_free(&data));
    return gpunvme_mem_free(&result) != GPUNVME_OK;
}
