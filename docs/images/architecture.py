#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws architecture.svg, the picture in README.md: docs/images/architecture.py > architecture.svg

Boxes stand on what they use. Positions are columns and rows of a grid; nothing is measured."""

WIDTH, ROW, GAP, MARGIN, LABEL = 960, 64, 10, 20, 118

COLOURS = {
    "user": ("#eef2ff", "#4f5d95"),
    "ours": ("#e8f5e9", "#2e7d32"),
    "gpu": ("#f1f8e9", "#76b900"),
    "outside": ("#f5f5f5", "#757575"),
}

# Row: its label, and boxes (first column, last column, rows, kind, title, what is in it).
# 12 columns.
ROWS = [
    ("your code", [
        (0, 3, 1, "user", "C, C++", "gpunvme/*.h"),
        (3, 6, 1, "user", "the command", "gpunvme store, bench, sim"),
        (6, 9, 1, "user", "CUDA kernels", "gpunvme/device.cuh"),
        (9, 12, 1, "user", "compute", "gpunvme/ops.h"),
    ]),
    ("data", [(0, 6, 1, "ours", "requests by kind, one-call files", "src/data")]),
    ("storage", [
        (0, 6, 1, "ours", "one storage API", "posix, cufile, nvme, spdk, stripe"),
        (6, 9, 1, "gpu", "I/O by the GPU", "src/device"),
        (9, 12, 1, "gpu", "operators", "matmul, linear: src/ops"),
    ]),
    ("driver", [
        (0, 3, 2, "outside", "Linux, cuFile, SPDK", "io_uring, O_DIRECT, GDS"),
        (3, 9, 1, "ours", "NVMe driver", "queues, PRP and SGL, reset: src/nvme"),
    ]),
    ("transport", [
        (3, 9, 1, "ours", "vfio, sysfs, uio, kernel module, vfio-user, sim", "src/transport, kmod"),
    ]),
    ("controller", [
        (0, 3, 1, "outside", "files and drives", "of the kernel"),
        (3, 6, 1, "outside", "NVMe controllers", "drives, QEMU, SPDK targets"),
        (6, 9, 1, "ours", "software controller", "CPU threads or a kernel"),
    ]),
]


def text(x, y, words, size, colour, weight="normal", anchor="middle"):
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return (f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" fill="{colour}" '
            f'text-anchor="{anchor}">{words}</text>')


def main():
    column = (WIDTH - 2 * MARGIN - LABEL) / 12
    height = 2 * MARGIN + len(ROWS) * (ROW + GAP) - GAP
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
          'font-family="Helvetica, Arial, sans-serif" role="img" '
          'aria-label="The parts of gpunvme, each standing on what it uses">')
    print(f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>')
    for i, (label, boxes) in enumerate(ROWS):
        y = MARGIN + i * (ROW + GAP)
        print(text(MARGIN, y + ROW / 2 + 5, label, 15, "#555555", anchor="start"))
        for first, last, rows, kind, title, inside in boxes:
            fill, edge = COLOURS[kind]
            x = MARGIN + LABEL + first * column
            width = (last - first) * column - GAP
            tall = rows * (ROW + GAP) - GAP
            print(f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{tall}" rx="6" '
                  f'fill="{fill}" stroke="{edge}" stroke-width="1.5"/>')
            middle = x + width / 2
            print(text(middle, y + tall / 2 - 4, title, 15, "#222222", "bold"))
            print(text(middle, y + tall / 2 + 16, inside, 12.5, "#555555"))
    print("</svg>")


if __name__ == "__main__":
    main()
