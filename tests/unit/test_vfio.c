/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The VFIO transport's talk with the kernel, with a kernel of the test's own in place of ioctl():
 * what is passed to iommufd, which few systems have yet, and what is made of its answers. The
 * guests of tests/qemu/ run the rest against a real one.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>

#include <cmocka.h>

static int fake_ioctl(int fd, unsigned long request, void *args);
#define ioctl(fd, request, args) fake_ioctl(fd, request, args)
#include "../../src/transport/vfio_cdev.c"
#undef ioctl

#define DEVICE 100
#define IOMMU  101

static struct kernel {
    int bind_errno, attach_errno, map_errno;
    uint32_t nranges; /* that it has */
    unsigned range_calls;
    struct ioas_map map;
    struct ioas_map_file map_file;
    struct ioas_unmap unmap;
} kernel;

static int answer(int error_number)
{
    errno = error_number;
    return error_number ? -1 : 0;
}

static int ranges_of(struct ioas_iova_ranges *args)
{
    struct iova_range *out = (struct iova_range *)(uintptr_t)args->allowed_iovas;
    uint32_t room = args->num_iovas;

    assert_int_equal(args->size, 32);
    assert_int_equal(args->ioas_id, 7);
    kernel.range_calls++;
    args->num_iovas = kernel.nranges;
    for (uint32_t i = 0; i < kernel.nranges && i < room; i++)
        out[i] = (struct iova_range){.first = i * UINT64_C(0x100000),
                                     .last = i * UINT64_C(0x100000) + 0xffff};
    return answer(room < kernel.nranges ? EMSGSIZE : 0);
}

static int fake_ioctl(int fd, unsigned long request, void *args)
{
    uint32_t size = *(uint32_t *)args;

    switch (request) { /* numbers and sizes as the kernel's headers have them */
    case 0x3b76:       /* VFIO_DEVICE_BIND_IOMMUFD */
        assert_int_equal(fd, DEVICE);
        assert_int_equal(size, 16);
        assert_int_equal(((struct bind_iommufd *)args)->iommufd, IOMMU);
        return answer(kernel.bind_errno);
    case 0x3b77: /* VFIO_DEVICE_ATTACH_IOMMUFD_PT */
        assert_int_equal(fd, DEVICE);
        assert_int_equal(size, 12);
        assert_int_equal(((struct attach_iommufd_pt *)args)->pt_id, 7);
        return answer(kernel.attach_errno);
    case 0x3b81: /* IOMMU_IOAS_ALLOC */
        assert_int_equal(fd, IOMMU);
        assert_int_equal(size, 12);
        ((struct ioas_alloc *)args)->out_ioas_id = 7;
        return 0;
    case 0x3b84: /* IOMMU_IOAS_IOVA_RANGES */
        return ranges_of(args);
    case 0x3b85: /* IOMMU_IOAS_MAP */
        assert_int_equal(size, 40);
        kernel.map = *(struct ioas_map *)args;
        return answer(kernel.map_errno);
    case 0x3b86: /* IOMMU_IOAS_UNMAP */
        assert_int_equal(size, 24);
        kernel.unmap = *(struct ioas_unmap *)args;
        return 0;
    case 0x3b8f: /* IOMMU_IOAS_MAP_FILE */
        assert_int_equal(size, 40);
        kernel.map_file = *(struct ioas_map_file *)args;
        return answer(kernel.map_errno);
    default:
        fail_msg("ioctl %lx", request);
        return -1;
    }
}

static struct vfio_transport opened(void)
{
    struct vfio_transport v = {.device = DEVICE, .iommu = IOMMU, .page = 4096, .ioas = 7};

    kernel = (struct kernel){.nranges = 2};
    v.iommu_ops = &iommu_ops;
    strcpy(v.function.bdf, "0000:01:00.0");
    pthread_mutex_init(&v.lock, NULL);
    return v;
}

static void iommufd_gets_the_structures_that_it_has(void **state)
{
    struct vfio_transport v = opened();

    (void)state;
    v.ioas = 0;
    assert_int_equal(attach(&v, "/dev/vfio/devices/vfio0"), 0);
    assert_int_equal(v.ioas, 7);
}

static void all_ranges_are_read_however_many_there_are(void **state)
{
    struct vfio_transport v = opened();

    (void)state;
    kernel.nranges = 100;
    assert_int_equal(find_ranges(&v), 0);
    assert_int_equal(kernel.range_calls, 2);
    assert_int_equal(v.iovas.nfree, 100);
    assert_int_equal(v.iovas.free[99].last, 99 * 0x100000 + 0xffff);
    iova_destroy(&v.iovas);
}

static void a_buffer_keeps_its_offset_in_the_page(void **state)
{
    static _Alignas(4096) char memory[3 * 4096];
    struct vfio_transport v = opened();
    struct gpunvme_buf buf = {.cpu = memory + 100, .nbytes = 8192};

    (void)state;
    assert_int_equal(find_ranges(&v), 0);
    assert_int_equal(vfio_map(&v.base, &buf), 0);
    assert_int_equal(kernel.map.flags, 7);
    assert_int_equal(kernel.map.ioas_id, 7);
    assert_int_equal(kernel.map.user_va, (uintptr_t)memory);
    assert_int_equal(kernel.map.length, 3 * 4096);
    assert_int_equal(kernel.map.iova % 65536, 0);
    assert_int_equal(buf.bus, kernel.map.iova + 100);
    assert_int_equal(vfio_map(&v.base, &buf), GPUNVME_ERR_BUSY);
    vfio_unmap(&v.base, &buf);
    assert_int_equal(kernel.unmap.iova, kernel.map.iova);
    assert_int_equal(kernel.unmap.length, 3 * 4096);
    assert_int_equal(buf.bus, 0);
    iova_destroy(&v.iovas);
}

/* One place of 64 KiB: the second mapping finds it free again after the first has failed. */
static void addresses_of_a_failed_mapping_are_free_again(void **state)
{
    static _Alignas(4096) char memory[4096];
    struct vfio_transport v = opened();
    struct gpunvme_buf buf = {.cpu = memory, .nbytes = sizeof(memory)};

    (void)state;
    assert_int_equal(iova_add(&v.iovas, 0x10000, 0x10fff), 0);
    kernel.map_errno = EFAULT;
    assert_int_equal(vfio_map(&v.base, &buf), GPUNVME_ERR_INVALID);
    kernel.map_errno = ENOSPC;
    assert_int_equal(vfio_map(&v.base, &buf), GPUNVME_ERR_LIMIT);
    kernel.map_errno = 0;
    assert_int_equal(vfio_map(&v.base, &buf), 0);
    assert_int_equal(buf.bus, 0x10000);
    iova_destroy(&v.iovas);
}

static void memory_of_a_gpu_that_the_kernel_refuses_is_unsupported(void **state)
{
    struct vfio_transport v = opened();

    (void)state;
    kernel.map_errno = EINVAL;
    assert_int_equal(map_fd(&v, 55, 4096, 8192, 0x20000), GPUNVME_ERR_UNSUPPORTED);
    assert_non_null(strstr(gpunvme_err_detail(), "GPU memory"));
    assert_int_equal(kernel.map_file.fd, 55);
    assert_int_equal(kernel.map_file.start, 4096);
    assert_int_equal(kernel.map_file.length, 8192);
    assert_int_equal(kernel.map_file.iova, 0x20000);
    kernel.map_errno = ENOTTY; /* before Linux 6.13 */
    assert_int_equal(map_fd(&v, 55, 0, 4096, 0x20000), GPUNVME_ERR_UNSUPPORTED);
}

static void a_device_that_is_bound_already_is_busy(void **state)
{
    struct vfio_transport v = opened();

    (void)state;
    kernel.bind_errno = EINVAL;
    assert_int_equal(attach(&v, "/dev/vfio/devices/vfio0"), GPUNVME_ERR_BUSY);
    kernel.bind_errno = 0;
    kernel.attach_errno = EPERM;
    assert_int_equal(attach(&v, "/dev/vfio/devices/vfio0"), GPUNVME_ERR_LIMIT);
    assert_non_null(strstr(gpunvme_err_detail(), "allow_unsafe_interrupts"));
}

/* Capabilities chained in an answer of the kernel's, and chains that lead astray. */
static void capabilities_are_found_and_never_behind_the_answer(void **state)
{
    _Alignas(8) char info[64] = {0};
    struct vfio_info_cap_header first = {.id = 1, .next = 40}, second = {.id = 3, .next = 0};

    (void)state;
    memcpy(info + 16, &first, sizeof(first));
    memcpy(info + 40, &second, sizeof(second));
    assert_ptr_equal(vfio_find_cap(info, sizeof(info), 16, 1), info + 16);
    assert_ptr_equal(vfio_find_cap(info, sizeof(info), 16, 3), info + 40);
    assert_null(vfio_find_cap(info, sizeof(info), 16, 2));
    assert_null(vfio_find_cap(info, sizeof(info), 0, 1));
    assert_null(vfio_find_cap(info, sizeof(info), 60, 1));
    second.next = 16; /* a circle */
    memcpy(info + 40, &second, sizeof(second));
    assert_null(vfio_find_cap(info, sizeof(info), 16, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(iommufd_gets_the_structures_that_it_has),
        cmocka_unit_test(all_ranges_are_read_however_many_there_are),
        cmocka_unit_test(a_buffer_keeps_its_offset_in_the_page),
        cmocka_unit_test(addresses_of_a_failed_mapping_are_free_again),
        cmocka_unit_test(memory_of_a_gpu_that_the_kernel_refuses_is_unsupported),
        cmocka_unit_test(a_device_that_is_bound_already_is_busy),
        cmocka_unit_test(capabilities_are_found_and_never_behind_the_answer),
    };

    return cmocka_run_group_tests_name("vfio", tests, NULL, NULL);
}
