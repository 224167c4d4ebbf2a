/* SPDX-License-Identifier: BSD-3-Clause
 *
 * One operator by its full interface: which variant will run, how much workspace it needs, and the
 * product C = A B. On a GPU the same calls take pointers to its memory, with exec.device =
 * GPUNVME_OPS_CUDA and exec.stream.
 *
 *   matmul [VARIANT]     "auto", or a name that `gpunvme ops list matmul` has
 */
#include <stdio.h>
#include <stdlib.h>

#include <gpunvme/ops.h>

enum { M = 300, N = 200, K = 100 };

static void check(gpunvme_ops_status_t status)
{
    if (status == GPUNVME_OPS_OK)
        return;
    fprintf(stderr, "matmul: %s: %s (%s)\n", gpunvme_ops_detail(), gpunvme_ops_status_text(status),
            gpunvme_ops_status_name(status));
    exit(1);
}

int main(int argc, char **argv)
{
    static float a[M * K], b[K * N], c[M * N]; /* row-major */
    struct gpunvme_matmul p = {
        .m = M,
        .n = N,
        .k = K,
        .batch = 1,
        .a = a,
        .b = b,
        .c = c,
        .lda = K,
        .ldb = N,
        .ldc = N,
        .alpha = 1, /* and all else 0: f32, nothing transposed, C is not read */
    };
    struct gpunvme_ops_exec exec = {.variant = argc > 1 ? argv[1] : "auto"};
    const size_t align = GPUNVME_OPS_WORKSPACE_ALIGN;
    const char *name;

    for (int i = 0; i < M * K; i++)
        a[i] = (float)(i / K); /* row i of A has the number i everywhere */
    for (int i = 0; i < K * N; i++)
        b[i] = 1;
    check(gpunvme_matmul_choose(&p, &exec, &name));
    check(gpunvme_matmul_workspace(&p, &exec, &exec.workspace_nbytes));
    if (exec.workspace_nbytes)
        exec.workspace = aligned_alloc(align, (exec.workspace_nbytes + align - 1) / align * align);
    check(gpunvme_matmul(&p, &exec));
    printf("%s, with %zu bytes of workspace: the last element is %g\n", name, exec.workspace_nbytes,
           (double)c[M * N - 1]);
    free(exec.workspace);
    return c[M * N - 1] == (float)K * (M - 1) ? 0 : 1;
}
