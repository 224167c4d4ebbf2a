#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Draws architecture.svg, the picture in README.md: docs/images/architecture.py > architecture.svg

A box stands on the boxes that it uses. Positions are columns and rows of a grid; nothing is measured.
The picture has a background of its own, so it is readable on light and dark pages."""

WIDTH, ROW, GAP, MARGIN, LABEL, KEY = 960, 64, 10, 20, 100, 34

COLOURS = {
    "user": ("#eef2ff", "#4f5d95"),
    "ours": ("#e8f5e9", "#2e7d32"),
    "outside": ("#f5f5f5", "#757575"),
}
MEANING = [("user", "your program"), ("ours", "gpunvme"), ("outside", "not part of gpunvme")]

# Row: its label, and boxes (first column, last column, rows, kind, title, what is in it).
# 12 columns.
ROWS = [
    ("programs", [
        (0, 2, 2, "user", "C, C++", "gpunvme/*.h"),
        (2, 4, 2, "ours", "the command", "store, bench, sim"),
        (4, 6, 1, "user", "Python", "numpy, PyTorch"),
        (6, 9, 1, "user", "CUDA kernels", "gpunvme/device.cuh"),
        (9, 12, 1, "user", "compute", "gpunvme/ops.h"),
    ]),
    ("", [
        (4, 6, 1, "ours", "package", "checkpoints, …"),
        (6, 9, 3, "ours", "I/O by the GPU", "src/device"),
        (9, 12, 3, "ours", "operators", "matmul, …: src/ops"),
    ]),
    ("data", [
        (0, 6, 1, "ours", "weights, samples, tiers, requests", "src/data"),
    ]),
    ("storage", [
        (0, 6, 1, "ours", "one storage API", "posix, cufile, spdk, nvme, stripe: src/storage"),
    ]),
    ("driver", [
        (0, 3, 2, "outside", "Linux, cuFile, SPDK", "io_uring, O_DIRECT, GDS"),
        (3, 9, 1, "ours", "NVMe driver", "queues, PRP and SGL, reset: src/nvme"),
    ]),
    ("transport", [
        (3, 9, 1, "ours", "transports",
         "vfio, sysfs, uio, kmod, vfio-user, sim: src/transport"),
    ]),
    ("controller", [
        (0, 3, 1, "outside", "files and drives", "of the kernel or SPDK"),
        (3, 6, 1, "outside", "NVMe controllers", "drives, QEMU, vfio-user"),
        (6, 9, 1, "ours", "software controller", "CPU threads or a kernel"),
    ]),
]


def text(x, y, words, size, colour, weight="normal", anchor="middle"):
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return (f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" fill="{colour}" '
            f'text-anchor="{anchor}">{words}</text>')


def main():
    column = (WIDTH - 2 * MARGIN - LABEL) / 12
    bottom = MARGIN + len(ROWS) * (ROW + GAP)
    height = bottom + KEY
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
          'font-family="Helvetica, Arial, sans-serif" role="img" '
          'aria-label="The parts of gpunvme; each part uses those below it">')
    print(f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>')
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
            assert 9.5 * len(title) < width and 7 * len(inside) < width, f"too wide: {title}"
            print(text(middle, y + tall / 2 - 4, title, 15, "#222222", "bold"))
            print(text(middle, y + tall / 2 + 16, inside, 12.5, "#555555"))
    for i, (kind, meaning) in enumerate(MEANING):
        fill, edge = COLOURS[kind]
        x = MARGIN + LABEL + 3 * i * column
        print(f'<rect x="{x:g}" y="{bottom}" width="16" height="16" rx="3" '
              f'fill="{fill}" stroke="{edge}" stroke-width="1.5"/>')
        print(text(x + 24, bottom + 13, meaning, 13, "#555555", anchor="start"))
    print("</svg>")


if __name__ == "__main__":
    main()
