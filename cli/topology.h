/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How drives and GPUs hang together: a tree of rows, from the machine down to the drives and GPUs,
 * with only what lies on the way to one.
 */
#ifndef CLI_TOPOLOGY_H
#define CLI_TOPOLOGY_H

#include <stdbool.h>
#include <stdio.h>

#include "gpunvme/error.h"

#define TOPOLOGY_MAX_ROWS 1024
#define TOPOLOGY_TEXT     96

enum topology_kind {
    TOPOLOGY_MACHINE, /* all that is not PCI: the machine, a package, a NUMA node */
    TOPOLOGY_HOST_BRIDGE,
    TOPOLOGY_ROOT_PORT,
    TOPOLOGY_SWITCH_PORT, /* a bridge below a root port */
    TOPOLOGY_DRIVE,
    TOPOLOGY_GPU,
};

struct topology_row {
    enum topology_kind kind;
    int parent; /* index of the row above it in the tree; -1: the first row */
    unsigned depth;
    bool is_package;           /* of a MACHINE row: below it is one socket or node */
    char name[TOPOLOGY_TEXT];  /* "Package 0", "0000:[00-1f]", "0000:01:00.0" */
    char model[TOPOLOGY_TEXT]; /* of a device, "" where it is not known */

    /* of drives and GPUs */
    unsigned vendor, device;
    int node; /* NUMA node; -1: none or several */
    char driver[32];
    int iommu_group;               /* -1: none */
    char speed[32], max_speed[32]; /* "16.0 GT/s PCIe"; "" where it is not known */
    unsigned width, max_width;     /* 0: not known */
};

struct topology {
    unsigned nrows;
    struct topology_row rows[TOPOLOGY_MAX_ROWS];
};

/* Looks at this machine, or at the XML that lstopo has written of one; sysfs is below `root`. */
gpunvme_err_t topology_look(const char *xml, const char *root, struct topology *out);

/* How the ways of two devices meet. */
enum topology_meeting {
    TOPOLOGY_MEET_SWITCH,      /* below one switch */
    TOPOLOGY_MEET_ROOT_PORT,   /* below one root port */
    TOPOLOGY_MEET_HOST_BRIDGE, /* in one root complex */
    TOPOLOGY_MEET_PACKAGE,     /* in one package or NUMA node, at different host bridges */
    TOPOLOGY_MEET_MACHINE,     /* in different packages */
};

/* Rows `a` and `b` meet at row *at. */
enum topology_meeting topology_meet(const struct topology *t, unsigned a, unsigned b, unsigned *at);

/* "drive", "root port", …; and of a meeting, "the same switch". */
const char *topology_kind_name(enum topology_kind kind);
const char *topology_meeting_name(enum topology_meeting meeting);

/* One line about a device: driver, IOMMU group, link. */
void topology_describe(const struct topology_row *row, char *text, size_t capacity);

/* A picture of the rows as SVG. */
void topology_svg(const struct topology *t, FILE *out);

#endif
