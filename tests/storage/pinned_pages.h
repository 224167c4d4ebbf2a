/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a test may ask of pinned_pages.c.
 */
#ifndef TESTS_PINNED_PAGES_H
#define TESTS_PINNED_PAGES_H

/* Is called when the page at `cpu` has been pinned and others have not; NULL: nothing is. */
extern void (*_Atomic pinned_pages_meanwhile)(const void *cpu);

#endif
