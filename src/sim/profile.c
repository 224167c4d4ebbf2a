/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The named profiles: what drives they stand for, and their numbers. Data only.
 */
#include <stddef.h>

#include "gpunvme/sim.h"

/*
 * Makers publish rates at full load and a typical latency at queue depth 1. `channels` is not
 * published: it is the smallest number with which the published latency allows the published
 * rate (Little's law), with some air.
 */
static const struct gpunvme_sim_profile profiles[] = {
    {
        .name = "unlimited",
        .text = "no modelled device: as fast as this machine",
    },
    {
        .name = "p5800x",
        .text = "Intel Optane SSD DC P5800X 800 GB (PCIe 4.0 x4), product brief: 5 us, 5 M IOPS at "
                "512 B, 1.5 M at 4 KiB, 7.2 GB/s read, 6.1 GB/s write",
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
        .text = "Samsung 990 PRO 2 TB (PCIe 4.0 x4), data sheet: 1.4 M read and 1.55 M write IOPS, "
                "7.45 GB/s read, 6.9 GB/s write",
        .model =
            {
                .read_latency_ns = 45000,
                .write_latency_ns = 12000,
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
        .text = "Samsung PM1743 class (PCIe 5.0 x4, power-loss protection): 2.5 M read and 250 k "
                "write IOPS, 13 GB/s read, 6.6 GB/s write",
        .model =
            {
                .read_latency_ns = 60000,
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
