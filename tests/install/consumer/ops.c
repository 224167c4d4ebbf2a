/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A program outside the project that multiplies two matrices and links nothing but the operators.
 */
#include <stdio.h>
#include <stdlib.h>

#include <gpunvme/ops.h>

int main(void)
{
    const float a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8};
    float c[4];
    struct gpunvme_matmul matmul = {.m = 2,
                                    .n = 2,
                                    .k = 2,
                                    .batch = 1,
                                    .a = a,
                                    .b = b,
                                    .c = c,
                                    .lda = 2,
                                    .ldb = 2,
                                    .ldc = 2,
                                    .alpha = 1};
    struct gpunvme_ops_exec exec = {0};
    gpunvme_ops_status_t status = gpunvme_matmul_workspace(&matmul, &exec, &exec.workspace_nbytes);

    exec.workspace =
        aligned_alloc(GPUNVME_OPS_WORKSPACE_ALIGN, (exec.workspace_nbytes + 255) & ~255ul);
    if (!status)
        status = gpunvme_matmul(&matmul, &exec);
    printf("%s: %g %g %g %g\n", gpunvme_ops_status_text(status), c[0], c[1], c[2], c[3]);
    free(exec.workspace);
    return status || c[0] != 19 || c[1] != 22 || c[2] != 43 || c[3] != 50;
}
