/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The process's table of descriptors.
 */
#ifndef BASE_DESCRIPTORS_H
#define BASE_DESCRIPTORS_H

/*
 * Has the kernel lengthen the table for some thousand descriptors. In a process with threads it
 * waits for all processors each time that it does so, some 10 ms: for the 65th, the 129th, the
 * 257th. So it is done for many at once, by a thread that nobody waits for.
 */
void base_lengthen_descriptors(void);

/* The same by a thread of its own, for who takes long to start. */
void base_lengthen_descriptors_meanwhile(void);

#endif
