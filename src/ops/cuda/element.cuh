/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What kernels do to single elements: types to f32 and back, and activations.
 */
#ifndef OPS_CUDA_ELEMENT_CUH
#define OPS_CUDA_ELEMENT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "ops/cuda/launch.h"
#include "ops/cuda/ptx.cuh"

/* (tests/ops/emulate runs kernels on the CPU, and has its own.) */
#ifndef LAUNCH
#define LAUNCH(kernel, blocks, threads, stream, ...)                                               \
    LAUNCH_SHARED(kernel, blocks, threads, 0, stream, __VA_ARGS__)

/* With so many bytes of shared memory; before more than 48 KiB cuda_allow_shared() is called. */
#define LAUNCH_SHARED(kernel, blocks, threads, nbytes, stream, ...)                                \
    kernel<<<blocks, threads, nbytes, (cudaStream_t)(stream)>>>(__VA_ARGS__)

/*
 * In clusters, and before the kernel before has ended. All threads call wait_for_kernels_before()
 * before they touch memory. Without cuda_has_clusters() there is neither: then the cluster must be
 * 1.
 */
#define LAUNCH_CLUSTERS(kernel, blocks, cluster, threads, nbytes, stream, ...)                     \
    launch_clusters(kernel, blocks, cluster, threads, nbytes, (cudaStream_t)(stream), __VA_ARGS__)

template <typename... ARGS>
static void launch_clusters(void (*kernel)(ARGS...), unsigned blocks, unsigned cluster,
                            unsigned threads, size_t nbytes, cudaStream_t stream, ARGS... args)
{
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};

    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {cluster, 1, 1};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = nbytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = cuda_has_clusters() ? 1 + (cluster > 1) : 0;
    cudaLaunchKernelEx(&config, kernel, args...); /* its error is also the last one */
}
#endif

/* Bits of a 16-bit type as f32, exactly, and back, to nearest even. */
static __device__ __forceinline__ float from_bits(uint16_t bits, int dtype)
{
    return dtype == GPUNVME_OPS_F16 ? __half2float(__ushort_as_half(bits))
                                    : __bfloat162float(__ushort_as_bfloat16(bits));
}

static __device__ __forceinline__ uint16_t to_bits(float value, int dtype)
{
    return dtype == GPUNVME_OPS_F16 ? __half_as_ushort(__float2half_rn(value))
                                    : __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

/* e4m3 is put in f32's place, and 2^120 makes up for the biases; e5m2 is the upper half of an f16.
 */
static __device__ __forceinline__ float from_fp8(uint8_t bits, int dtype)
{
    uint32_t magnitude = bits & 0x7f;
    float size = __uint_as_float(magnitude == 0x7f ? 0x7fc00000 : magnitude << 20) * 0x1p120f;

    if (dtype == GPUNVME_OPS_E5M2)
        return from_bits((uint16_t)(bits << 8), GPUNVME_OPS_F16);
    return bits & 0x80 ? -size : size;
}

/* Two elements of a 16-bit type in one register, the first in the lower half. */
static __device__ __forceinline__ uint32_t to_pair(float low, float high, int dtype)
{
    return dtype == GPUNVME_OPS_F16 ? pack_f16(low, high) : pack_bf16(low, high);
}

static __device__ __forceinline__ void from_pair(uint32_t pair, int dtype, float &low, float &high)
{
    low = from_bits((uint16_t)pair, dtype);
    high = dtype == GPUNVME_OPS_BF16 ? __uint_as_float(pair & 0xffff0000)
                                     : from_bits((uint16_t)(pair >> 16), dtype);
}

/* Of two pairs, the larger ones. */
template <int DTYPE> static __device__ __forceinline__ uint32_t max_pair(uint32_t x, uint32_t y)
{
    return DTYPE == GPUNVME_OPS_F16 ? max_f16(x, y) : max_bf16(x, y);
}

static __device__ __forceinline__ float load_element(const void *data, int64_t i, int dtype)
{
    if (dtype == GPUNVME_OPS_F32)
        return ((const float *)data)[i];
    return from_bits(((const uint16_t *)data)[i], dtype);
}

static __device__ __forceinline__ void store_element(void *data, int64_t i, int dtype, float value)
{
    if (dtype == GPUNVME_OPS_F32)
        ((float *)data)[i] = value;
    else
        ((uint16_t *)data)[i] = to_bits(value, dtype);
}

#define SQRT_HALF       0.70710678118654752440f
#define INV_SQRT_2PI    0.39894228040143267794f
#define SQRT_2_OVER_PI  0.79788456080286535588f
#define GELU_TANH_CUBIC 0.044715f
#define LOG2_E          1.44269504088896340736f

/* Activations as cpu_activate() has them. */
static __device__ __forceinline__ float exact_activate(int activation, float z)
{
    switch (activation) {
    case GPUNVME_OPS_ACT_RELU:
        return z < 0 ? 0 : z; /* a NaN stays one */
    case GPUNVME_OPS_ACT_GELU:
        return 0.5f * z * erfcf(-z * SQRT_HALF); /* 1 + erf, without its cancellation */
    case GPUNVME_OPS_ACT_GELU_TANH: {
        float u = SQRT_2_OVER_PI * (z + GELU_TANH_CUBIC * z * z * z);

        return z / (1 + expf(-2 * u)); /* (1 + tanh u) / 2, likewise */
    }
    case GPUNVME_OPS_ACT_SILU:
        return z / (1 + expf(-z));
    default:
        return z;
    }
}

/*
 * For results of 16 bits all are z / (1 + 2^w), w an odd polynomial of z. Below SOFT_LEAST GELU's
 * results are taken for what they are there: -6e-9, which keeps 2^w small enough for two of them to
 * be multiplied. (SiLU falls slowly, and has SILU_LEAST.)
 *
 * For GELU, w is the logarithm of the odds of a normal distribution: the polynomial is fitted to
 * it for |z| < 6 by Lawson's algorithm so that results are off by 2^-12 of their value where
 * z > -4.3, and by at most 4e-8 to the left of that.
 */
#define SOFT_LEAST (-6.0f)
#define SILU_LEAST (-40.0f)

template <int ACTIVATION> static __device__ __forceinline__ float soft_exponent(float z)
{
    float u = z * z, p;

    if (ACTIVATION == GPUNVME_OPS_ACT_SILU)
        return -LOG2_E * z;
    if (ACTIVATION == GPUNVME_OPS_ACT_GELU_TANH) {
        p = -2 * LOG2_E * SQRT_2_OVER_PI * GELU_TANH_CUBIC * u - 2 * LOG2_E * SQRT_2_OVER_PI;
    } else {
        p = -8.273506729e-10f * u + 9.392492021e-8f;
        p = p * u - 4.004008096e-6f;
        p = p * u + 6.720503968e-5f;
        p = p * u + 6.579677959e-4f;
        p = p * u - 1.063436543e-1f;
        p = p * u - 2.300992700f;
    }
    return p * z;
}

/* Two at once need one reciprocal. */
template <int ACTIVATION> static __device__ __forceinline__ void activate_pair(float (&z)[2])
{
    const float least = ACTIVATION == GPUNVME_OPS_ACT_SILU ? SILU_LEAST : SOFT_LEAST;
    float a, b, r;

    if (ACTIVATION == GPUNVME_OPS_ACT_NONE)
        return;
    if (ACTIVATION == GPUNVME_OPS_ACT_RELU) {
        z[0] = max_or_nan(z[0], 0);
        z[1] = max_or_nan(z[1], 0);
        return;
    }
    z[0] = max_or_nan(z[0], least);
    z[1] = max_or_nan(z[1], least);
    a = 1 + fast_exp2(soft_exponent<ACTIVATION>(z[0]));
    b = 1 + fast_exp2(soft_exponent<ACTIVATION>(z[1]));
    r = fast_reciprocal(a * b);
    /* A NaN in one reaches the other by r: then each has a reciprocal of its own. */
    if (a * b != a * b) {
        z[0] *= fast_reciprocal(a);
        z[1] *= fast_reciprocal(b);
        return;
    }
    z[0] *= r * b;
    z[1] *= r * a;
}

static __device__ __forceinline__ float fast_activate(int activation, float z)
{
    float pair[2] = {z, 0};

    switch (activation) {
    case GPUNVME_OPS_ACT_RELU:
        activate_pair<GPUNVME_OPS_ACT_RELU>(pair);
        break;
    case GPUNVME_OPS_ACT_GELU:
        activate_pair<GPUNVME_OPS_ACT_GELU>(pair);
        break;
    case GPUNVME_OPS_ACT_GELU_TANH:
        activate_pair<GPUNVME_OPS_ACT_GELU_TANH>(pair);
        break;
    case GPUNVME_OPS_ACT_SILU:
        activate_pair<GPUNVME_OPS_ACT_SILU>(pair);
        break;
    default:
        break;
    }
    return pair[0];
}

static __device__ __forceinline__ float activate(int activation, int dtype, float z)
{
    return dtype == GPUNVME_OPS_F32 ? exact_activate(activation, z) : fast_activate(activation, z);
}

/* s (1 - s) for s = 1 / (1 + exp(-x)), without overflow to NaN. */
static __device__ __forceinline__ float sigmoid_slope(float x)
{
    float e = expf(-fabsf(x));

    return e / ((1 + e) * (1 + e));
}

/* 1 / (1 + 2^-x). */
static __device__ __forceinline__ float logistic2(float x)
{
    return fast_reciprocal(1 + fast_exp2(-x));
}

/* more + x y, but where z is so large that y is 0 and x y might be infinity times that, just more;
 * a NaN is in `more` already. */
static __device__ __forceinline__ float add_product(float more, float x, float y, float z)
{
    return fabsf(z) < 64 ? x * y + more : more;
}

/*
 * GELU's derivative for matrices of 16 bits: the share s of a normal distribution below z, and z
 * times its density. s is a logistic function of an odd polynomial of degree 9, which is fitted to
 * err by 1e-5 at most and by the least share of the derivative for z in [-5, -1.5]; its highest
 * coefficient is positive, so that s goes to 0 and 1 by itself. Of all values of bf16 and f16 the
 * error is 1.01e-5 at most; of the derivative it is 1.4e-5 for z > 0, 7e-4 from -2 down to -5,
 * where the derivative is -7e-6, and 2.3 % beyond.
 */
static __device__ __forceinline__ float fast_gelu_grad(float z)
{
    float w = z * z, p = 1.15943899e-6f, density;

    p = p * w - 4.19647299e-5f;
    p = p * w - 6.20914167e-4f;
    p = p * w + 0.105628515f;
    p = p * w + 2.30194136f;
    density = fast_exp2(w * (-0.5f * LOG2_E) - 1.32574806473616f); /* sqrt(2 pi), by log2 */
    return add_product(logistic2(z * p), z, density, z);
}

/*
 * cpu_activate_grad() for matrices of 16 bits, whose products round it by more, in a third of the
 * instructions. GELU by tanh and SiLU err by 2e-6 and 1e-6 at most.
 */
static __device__ __forceinline__ float fast_activate_grad(int activation, float z)
{
    switch (activation) {
    case GPUNVME_OPS_ACT_RELU:
        return z > 0 ? 1 : (z <= 0 ? 0 : z);
    case GPUNVME_OPS_ACT_GELU:
        return fast_gelu_grad(z);
    case GPUNVME_OPS_ACT_GELU_TANH: {
        float w = z * z;
        float s = logistic2(z * (2 * LOG2_E * SQRT_2_OVER_PI) * (1 + GELU_TANH_CUBIC * w));
        float zu = z * (2 * SQRT_2_OVER_PI) * (1 + 3 * GELU_TANH_CUBIC * w);

        return add_product(s, s - s * s, zu, z);
    }
    case GPUNVME_OPS_ACT_SILU: {
        float s = logistic2(z * LOG2_E);

        return add_product(s, s - s * s, z, z);
    }
    default:
        return 1;
    }
}

/* cpu_activate_grad() */
static __device__ __forceinline__ float activate_grad(int activation, int dtype, float z)
{
    if (dtype != GPUNVME_OPS_F32)
        return fast_activate_grad(activation, z);
    switch (activation) {
    case GPUNVME_OPS_ACT_RELU:
        return z > 0 ? 1 : (z <= 0 ? 0 : z);
    case GPUNVME_OPS_ACT_GELU: {
        float e = expf(-0.5f * z * z);

        return 0.5f * erfcf(-z * SQRT_HALF) + (e > 0 ? z * INV_SQRT_2PI * e : 0);
    }
    case GPUNVME_OPS_ACT_GELU_TANH: {
        float u = SQRT_2_OVER_PI * (z + GELU_TANH_CUBIC * z * z * z);
        float du = SQRT_2_OVER_PI * (1 + 3 * GELU_TANH_CUBIC * z * z);
        float slope = sigmoid_slope(2 * u);

        return 1 / (1 + expf(-2 * u)) + (slope > 0 ? 2 * z * du * slope : 0);
    }
    case GPUNVME_OPS_ACT_SILU: {
        float slope = sigmoid_slope(z);

        return 1 / (1 + expf(-z)) + (slope > 0 ? z * slope : 0);
    }
    default:
        return 1;
    }
}

/*
 * 8 elements of 16 bits to shared memory, zeros for those from `valid` on, one at a time: where
 * rows are not aligned for cp_async16().
 */
static __device__ __forceinline__ void gather16(uint32_t to, const void *from, int valid)
{
    uint32_t pairs[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint16_t *x = (const uint16_t *)from + 2 * i;
        uint32_t low = 2 * i < valid ? x[0] : 0, high = 2 * i + 1 < valid ? x[1] : 0;

        pairs[i] = high << 16 | low;
    }
    store_shared16(to, pairs);
}

/*
 * Four elements at once, aligned to their size. (__stwb() is what an assignment is, but that the
 * assembler of CUDA 13.0 makes four stores of, 16 bytes apart for neighbouring threads.)
 */
static __device__ __forceinline__ void store4(void *data, int64_t at, int dtype, const float *z)
{
    if (dtype == GPUNVME_OPS_F32)
        __stwb((float4 *)((float *)data + at), make_float4(z[0], z[1], z[2], z[3]));
    else
        __stwb((uint2 *)((uint16_t *)data + at),
               make_uint2(to_pair(z[0], z[1], dtype), to_pair(z[2], z[3], dtype)));
}

static __device__ __forceinline__ void load4(const void *data, int64_t at, int dtype, float *z)
{
    if (dtype == GPUNVME_OPS_F32) {
        float4 v = *(const float4 *)((const float *)data + at);

        z[0] = v.x;
        z[1] = v.y;
        z[2] = v.z;
        z[3] = v.w;
    } else {
        uint2 v = *(const uint2 *)((const uint16_t *)data + at);

        from_pair(v.x, dtype, z[0], z[1]);
        from_pair(v.y, dtype, z[2], z[3]);
    }
}

#endif
