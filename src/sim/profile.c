/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The named profiles: what drives they stand for, and their numbers. Data only.
 */
#include <stddef.h>

#include "gpunvme/sim.h"

/*
 * Makers publish rates at full load and, some, a typical latency at queue depth 1; docs/SIM.md says
 * where each number comes from. `channels` is not published: it is what the published latency needs
 * for the published rate (Little's law), rounded up to a power of two. Nor is `latency_sigma`.
 */
static const struct gpunvme_sim_profile profiles[] = {
    {
        .name = "unlimited",
        .text = "no modelled device: as fast as this machine",
    },
    {
        .name = "p5800x",
        .text =
            "Intel Optane SSD DC P5800X, 800 GB, PCIe 4.0 x4: 5 us, 4.6 M reads/s of 512 bytes, "
            "7.2 GB/s read, 6.1 GB/s write (product brief; BaM for 512 bytes)",
        .model =
            {
                .read_latency_ns = 5000,
                .write_latency_ns = 5000,
                .flush_latency_ns = 5000,
                .latency_sigma = 0.05,
                .read_iops = 4600000,
                .write_iops = 1500000,
                .read_bytes_per_s = 7200000000,
                .write_bytes_per_s = 6100000000,
                .channels = 32,
            },
    },
    {
        .name = "consumer-pcie4",
        .text = "Samsung 990 PRO, 2 TB, PCIe 4.0 x4, volatile write cache: 45 us, 1.4 M reads/s, "
                "7.45 GB/s read, 6.9 GB/s write (data sheet)",
        .model =
            {
                .read_latency_ns = 45000,
                .write_latency_ns = 12500,
                .flush_latency_ns = 1000000,
                .latency_sigma = 0.2,
                .read_iops = 1400000,
                .write_iops = 1550000,
                .read_bytes_per_s = 7450000000,
                .write_bytes_per_s = 6900000000,
                .channels = 128,
            },
        .vwc = true,
    },
    {
        .name = "datacenter-pcie5",
        .text = "Samsung PM1743, PCIe 5.0 x4, power-loss protection: 70 us, 2.5 M reads/s, 13 GB/s "
                "read, 6.6 GB/s write (announcement; latency of KIOXIA's first PCIe 5.0 drive)",
        .model =
            {
                .read_latency_ns = 70000,
                .write_latency_ns = 10000,
                .flush_latency_ns = 10000,
                .latency_sigma = 0.15,
                .read_iops = 2500000,
                .write_iops = 250000,
                .read_bytes_per_s = 13000000000,
                .write_bytes_per_s = 6600000000,
                .channels = 256,
            },
    },
};

const struct gpunvme_sim_profile *gpunvme_sim_profile(unsigned index)
{
    return index < sizeof(profiles) / sizeof(profiles[0]) ? &profiles[index] : NULL;
}
