/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The memory of a vfio-user client: mapped here where it came with a file descriptor that can do no
 * harm, reached by DMA_READ and DMA_WRITE messages where not.
 *
 * The file is the client's. One that can shrink, or lose pages that nobody can replace, would end
 * the server by SIGBUS. One of a file system that is a program (FUSE) would keep the server waiting
 * in fstat(), mmap() and at every page. So a descriptor is asked only what the kernel knows without
 * a file system, its seals and fdinfo. Clients that are trusted (GPUNVME_SIM_SERVE_TRUST) are not
 * examined: SPDK's driver offers huge pages without seals, and answers no messages.
 *
 * Source: the vfio-user specification, "VFIO_USER_DMA_MAP" to "VFIO_USER_DMA_WRITE"; fcntl(2),
 * "File sealing"; Linux, driver-api/dma-buf.rst.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cond.h"
#include "gpunvme/atomics.h"
#include "sim/serve/serve.h"

/* Drivers give this to mmap() of their dma-bufs, though it is for the kernel's own use. */
#define ENOTSUPP 524

/* --- messages --------------------------------------------------------------------------------- */

/* It would keep the controller waiting for each of its commands. */
static void give_up(struct serve_conn *conn)
{
    vfio_user_channel_shutdown(&conn->ch);
    serve_conn_end(conn);
}

static void enqueue_wait(struct serve_conn *conn, struct serve_wait *w)
{
    pthread_mutex_lock(&conn->lock);
    w->id = conn->next_id++;
    w->next = conn->waits;
    conn->waits = w;
    pthread_mutex_unlock(&conn->lock);
}

/* Waits for the reply; in any case *w is nobody's when this returns. */
static bool await(struct serve_conn *conn, struct serve_wait *w)
{
    uint64_t deadline_ns = gpunvme_clock_ns() + SERVE_WAIT_NS;
    struct serve_wait **link = &conn->waits;
    bool in_time = true;

    pthread_mutex_lock(&conn->lock);
    while (!w->done && !conn->ended && in_time)
        in_time = base_cond_wait(&conn->changed, &conn->lock, deadline_ns);
    while (*link != w)
        link = &(*link)->next;
    *link = w->next;
    pthread_mutex_unlock(&conn->lock);
    if (!w->done && !in_time)
        give_up(conn);
    return w->done && w->ok;
}

/* One message, of at most the client's limit. */
static bool transfer(struct serve_conn *conn, uint64_t bus, void *memory, size_t nbytes,
                     bool to_client)
{
    struct vfio_user_dma_access access = {.address = bus, .count = nbytes};
    struct serve_wait w = {.to = to_client ? NULL : memory, .nbytes = nbytes};
    struct vfio_user_header header = {.command =
                                          to_client ? VFIO_USER_DMA_WRITE : VFIO_USER_DMA_READ};
    struct iovec parts[2] = {{.iov_base = &access, .iov_len = sizeof(access)},
                             {.iov_base = memory, .iov_len = nbytes}};

    enqueue_wait(conn, &w);
    header.message_id = w.id;
    if (vfio_user_send(&conn->ch, &header, parts, to_client ? 2 : 1, NULL, 0,
                       gpunvme_clock_ns() + SERVE_WAIT_NS))
        give_up(conn);
    return await(conn, &w);
}

/* The reader's: hands a reply to who waits for it. One that comes too late is nobody's. */
void serve_dma_reply(struct serve_conn *conn, const struct vfio_user_message *m)
{
    const size_t head = sizeof(struct vfio_user_dma_access);
    struct serve_wait *w;

    pthread_mutex_lock(&conn->lock);
    for (w = conn->waits; w && (w->done || w->id != m->header.message_id);)
        w = w->next;
    if (w) {
        w->done = true;
        w->ok = !(m->header.flags & VFIO_USER_FLAG_ERROR);
        if (w->to && (m->header.command != VFIO_USER_DMA_READ || m->nbytes < head ||
                      m->nbytes - head != w->nbytes))
            w->ok = false;
        if (w->to && w->ok)
            memcpy(w->to, (const uint8_t *)m->body + head, w->nbytes);
        pthread_cond_broadcast(&conn->changed);
    }
    pthread_mutex_unlock(&conn->lock);
}

/* sim_move_fn: called by the controller's threads. */
static bool move(void *map_, uint64_t bus, void *memory_, size_t nbytes, bool to_bus)
{
    struct serve_map *map = map_;
    struct serve_conn *conn = map->server->conn;
    uint8_t *memory = memory_, *mapped;

    if (!(to_bus ? map->writable : map->readable))
        return false;
    if (map->memory) {
        mapped = map->memory + (bus - map->bus);
        memcpy(to_bus ? mapped : memory, to_bus ? memory : mapped, nbytes);
        return true;
    }
    while (nbytes) {
        size_t most = atomic_load(&conn->xfer_max), n = nbytes < most ? nbytes : most;

        if (!transfer(conn, bus, memory, n, to_bus))
            return false;
        bus += n;
        memory += n;
        nbytes -= n;
    }
    return true;
}

/* --- mappings --------------------------------------------------------------------------------- */

/* A dma-buf keeps its size and its pages, and is the only file with this line in its fdinfo. */
static bool is_dma_buf(int fd)
{
    char text[512];
    ssize_t n;
    int info;

    snprintf(text, sizeof(text), "/proc/self/fdinfo/%d", fd);
    info = open(text, O_RDONLY | O_CLOEXEC);
    if (info < 0)
        return false;
    n = read(info, text, sizeof(text) - 1);
    close(info);
    text[n > 0 ? n : 0] = '\0';
    return strstr(text, "\nexp_name:");
}

/* Why the file must not be mapped; NULL: it may. See above. */
static const char *danger(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS);
    struct statfs fs;

    if (seals < 0)
        return is_dma_buf(fd) ? NULL : "is neither a memfd nor a dma-buf";
    if (!(seals & F_SEAL_SHRINK))
        return "is not sealed against shrinking (F_SEAL_SHRINK)";
    if (fstatfs(fd, &fs) || fs.f_type == HUGETLBFS_MAGIC)
        return "has huge pages, which its owner can take away";
    return NULL;
}

/* May the descriptor be mapped? Tells why not. */
static bool may_map(struct gpunvme_sim_server *s, const struct serve_map *map, int fd)
{
    const char *why = s->trust ? NULL : danger(fd);

    if (why)
        sim_warn(s->sim, GPUNVME_SIM_WARNING_UNSEALED,
                 "%llu bytes at bus address %llxh are reached by messages: the client's file %s",
                 (unsigned long long)map->nbytes, (unsigned long long)map->bus, why);
    return !why;
}

/* Bytes of the file, 0 where it does not say. */
static uint64_t file_size(int fd, const struct stat *st)
{
    off_t end = S_ISREG(st->st_mode) ? st->st_size : lseek(fd, 0, SEEK_END);

    return end > 0 ? (uint64_t)end : 0;
}

/* Maps bytes of the file: whole pages of it, which in a file of huge pages are huge ones. */
static int map_file(struct serve_map *map, int fd, uint64_t offset)
{
    int prot = PROT_READ | (map->writable ? PROT_WRITE : 0);
    uint64_t page, begin, end, size;
    struct stat st;
    void *base;

    if (fstat(fd, &st))
        return errno;
    size = file_size(fd, &st);
    if (offset > size || map->nbytes > size - offset)
        return EINVAL;
    page = S_ISREG(st.st_mode) ? (uint64_t)st.st_blksize : 0;
    if (page < 4096 || page & (page - 1))
        page = 4096;
    begin = offset & ~(page - 1);
    end = (offset + map->nbytes + page - 1) & ~(page - 1);
    base = mmap(NULL, end - begin, prot, MAP_SHARED, fd, (off_t)begin);
    if (base == MAP_FAILED)
        return errno == ENOTSUPP ? ENOTSUP : errno;
    map->base = base;
    map->base_nbytes = end - begin;
    map->memory = (uint8_t *)base + (offset - begin);
    return 0;
}

static void free_map(struct serve_map *map)
{
    if (map->base)
        munmap(map->base, map->base_nbytes);
    free(map);
}

static gpunvme_err_t attach(struct gpunvme_sim_server *s, struct serve_map *map)
{
    struct gpunvme_buf buf = {.cpu = map->memory, .nbytes = map->nbytes, .mem = GPUNVME_MEM_HOST};

    if (map->memory && map->readable && map->writable)
        return gpunvme_sim_dma_map(s->sim, map->bus, map->nbytes, &buf);
    return sim_dma_map_far(s->sim, map->bus, map->nbytes, move, map);
}

static bool overlap(const struct serve_map *map, uint64_t bus, uint64_t nbytes)
{
    return map->bus - bus < nbytes || bus - map->bus < map->nbytes;
}

static int check_map(const struct gpunvme_sim_server *s, const struct vfio_user_message *m,
                     const struct vfio_user_dma_map *ask)
{
    const uint32_t flags = VFIO_USER_DMA_READABLE | VFIO_USER_DMA_WRITEABLE;

    if (ask->argsz < sizeof(*ask) || ask->flags & ~flags || !(ask->flags & flags) || !ask->size ||
        ask->address + (ask->size - 1) < ask->address || ask->offset + ask->size < ask->offset ||
        ask->offset + ask->size > INT64_MAX || m->nfds > 1)
        return EINVAL;
    if (s->nmaps == SERVE_MAPS_MAX)
        return ENOSPC;
    for (const struct serve_map *map = s->maps; map; map = map->next)
        if (overlap(map, ask->address, ask->size))
            return EEXIST;
    return 0;
}

int serve_dma_map(struct gpunvme_sim_server *s, struct vfio_user_message *m)
{
    struct vfio_user_dma_map ask;
    struct serve_map *map;
    int error;

    if (m->nbytes < sizeof(ask))
        return EINVAL;
    memcpy(&ask, m->body, sizeof(ask));
    error = check_map(s, m, &ask);
    if (error)
        return error;
    map = calloc(1, sizeof(*map));
    if (!map)
        return ENOMEM;
    map->server = s;
    map->bus = ask.address;
    map->nbytes = ask.size;
    map->readable = ask.flags & VFIO_USER_DMA_READABLE;
    map->writable = ask.flags & VFIO_USER_DMA_WRITEABLE;
    if (m->nfds && may_map(s, map, m->fds[0]))
        error = map_file(map, m->fds[0], ask.offset);
    if (!error && attach(s, map))
        error = ENOMEM;
    if (error) {
        free_map(map);
        return error;
    }
    map->next = s->maps;
    s->maps = map;
    s->nmaps++;
    return 0;
}

/* Takes the mapping *link away from the controller. */
static int detach(struct gpunvme_sim_server *s, struct serve_map **link)
{
    struct serve_map *map = *link;

    if (gpunvme_sim_dma_unmap(s->sim, map->bus, map->nbytes))
        return EBUSY; /* a store is stuck with it: it must stay */
    *link = map->next;
    s->nmaps--;
    free_map(map);
    return 0;
}

/* All that lie in the range; one that is only partly in it is an error, and so is none. */
static int unmap_range(struct gpunvme_sim_server *s, uint64_t bus, uint64_t nbytes)
{
    bool any = false;

    for (const struct serve_map *map = s->maps; map; map = map->next) {
        if (!overlap(map, bus, nbytes))
            continue;
        if (map->bus < bus || map->nbytes > nbytes || map->bus - bus > nbytes - map->nbytes)
            return EINVAL;
        any = true;
    }
    if (!any)
        return ENOENT;
    for (struct serve_map **link = &s->maps; *link;) {
        if (!overlap(*link, bus, nbytes)) {
            link = &(*link)->next;
            continue;
        }
        if (detach(s, link))
            return EBUSY;
    }
    return 0;
}

static int unmap_all(struct gpunvme_sim_server *s)
{
    while (s->maps)
        if (detach(s, &s->maps))
            return EBUSY;
    return 0;
}

int serve_dma_unmap(struct gpunvme_sim_server *s, const struct vfio_user_message *m,
                    struct serve_reply *r)
{
    struct vfio_user_dma_unmap ask;
    int error;

    if (m->nbytes < sizeof(ask))
        return EINVAL;
    memcpy(&ask, m->body, sizeof(ask));
    if (ask.argsz < sizeof(ask))
        return EINVAL;
    if (ask.flags & VFIO_DMA_UNMAP_FLAG_GET_DIRTY_BITMAP)
        return ENOTSUP; /* there is no migration */
    if (ask.flags & ~VFIO_DMA_UNMAP_FLAG_ALL)
        return EINVAL;
    if (ask.flags)
        error = ask.address || ask.size ? EINVAL : unmap_all(s);
    else if (!ask.size || ask.address + (ask.size - 1) < ask.address)
        error = EINVAL;
    else
        error = unmap_range(s, ask.address, ask.size);
    memcpy(r->head, &ask, sizeof(ask));
    r->head_nbytes = sizeof(ask);
    return error;
}

/*
 * Everything, of a client that has left; the controller has been reset. What a store is stuck
 * with stays mapped, and as long as it does there is no next client, who could reach it.
 */
void serve_dma_drop(struct gpunvme_sim_server *s)
{
    struct serve_map **link = &s->maps;

    while (*link)
        if (detach(s, link))
            link = &(*link)->next;
}
