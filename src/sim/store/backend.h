/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What is under a store: memory or an image file, and over them the volatile write cache. Known to
 * the store's own files only.
 */
#ifndef SIM_BACKEND_H
#define SIM_BACKEND_H

#include "sim/store/store.h"

struct sim_backend;

/* submit and poll as in store.h; transfers were checked and are allowed. */
struct sim_backend_ops {
    void (*close)(struct sim_backend *backend);
    void (*submit)(struct sim_backend *backend, unsigned lane, struct sim_store_io *io);
    unsigned (*poll)(struct sim_backend *backend, unsigned lane);
    /* Does a transfer at once, in no lane: `done` is not called. */
    gpunvme_err_t (*now)(struct sim_backend *backend, const struct sim_store_io *io);
};

struct sim_backend {
    const struct sim_backend_ops *ops;
    uint64_t nbytes;
    uint8_t *direct;  /* the bytes, where the CPU reaches them */
    uint8_t *gpu;     /* the bytes, where they are in GPU memory */
    const char *path; /* for sim_store_path() */
    bool is_foreign;  /* for sim_store_is_foreign() */
};

gpunvme_err_t sim_ram_open(const struct sim_store_config *config, struct sim_backend **out);
gpunvme_err_t sim_gpu_open(const struct sim_store_config *config, struct sim_backend **out);
gpunvme_err_t sim_image_open(const struct sim_store_config *config, struct sim_backend **out);

struct sim_cache;

/* A volatile write cache over a backend, which stays the caller's. */
gpunvme_err_t sim_cache_create(const struct sim_store_config *config, struct sim_backend *below,
                               struct sim_cache **out);
void sim_cache_destroy(struct sim_cache *cache); /* writes back first */
void sim_cache_submit(struct sim_cache *cache, unsigned lane, struct sim_store_io *io);
unsigned sim_cache_poll(struct sim_cache *cache, unsigned lane); /* without the backend's poll */
void sim_cache_power_loss(struct sim_cache *cache);

#endif
