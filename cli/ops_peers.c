/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What operators are compared with: OpenBLAS, loaded at run time so that nothing needs it.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops.h"

/* Of CBLAS. */
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

bool ops_blas_open(struct ops_blas *blas)
{
    char *(*config)(void), *(*core)(void);
    size_t words;

    memset(blas, 0, sizeof(*blas));
    blas->handle = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!blas->handle)
        return false;
    *(void **)&blas->sgemm = dlsym(blas->handle, "cblas_sgemm");
    *(void **)&blas->set_num_threads = dlsym(blas->handle, "openblas_set_num_threads");
    *(void **)&config = dlsym(blas->handle, "openblas_get_config");
    *(void **)&core = dlsym(blas->handle, "openblas_get_corename");
    if (!blas->sgemm || !blas->set_num_threads || !config || !core)
        return false;
    /* "OpenBLAS 0.3.21 NO_LAPACKE …": two words of it. */
    words = strcspn(config(), " ");
    words += config()[words] ? 1 + strcspn(config() + words + 1, " ") : 0;
    snprintf(blas->config, sizeof(blas->config), "%.*s, its code for %s%s", (int)words, config(),
             core(), getenv("OPENBLAS_CORETYPE") ? ", which OPENBLAS_CORETYPE asked for" : "");
    return true;
}

void ops_blas_run(const struct ops_blas *blas, const struct ops_case *c, int threads)
{
    int m = (int)c->shape.m, n = (int)c->shape.n, k = (int)c->shape.k;

    blas->set_num_threads(threads);
    if (c->op == GPUNVME_OPS_MATMUL) {
        blas->sgemm(ROW_MAJOR, NO_TRANS, NO_TRANS, m, n, k, 1, c->host[OPS_A], k, c->host[OPS_B], n,
                    0, c->host[OPS_C], n);
    } else if (c->op == GPUNVME_OPS_LINEAR_FORWARD) {
        blas->sgemm(ROW_MAJOR, NO_TRANS, TRANS, m, n, k, 1, c->host[OPS_A], k, c->host[OPS_B], k, 0,
                    c->host[OPS_C], n);
    } else {
        blas->sgemm(ROW_MAJOR, NO_TRANS, NO_TRANS, m, k, n, 1, c->host[OPS_GRAD_Y], n,
                    c->host[OPS_B], k, 0, c->host[OPS_C], k);
        blas->sgemm(ROW_MAJOR, TRANS, NO_TRANS, n, k, m, 1, c->host[OPS_GRAD_Y], n, c->host[OPS_A],
                    k, 0, c->host[OPS_GRAD_WEIGHT], k);
    }
}
