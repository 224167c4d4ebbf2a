/* SPDX-License-Identifier: BSD-3-Clause
 *
 * For loops that look at a word until it changes: tells the processor so.
 */
#ifndef BASE_RELAX_H
#define BASE_RELAX_H

static inline void base_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

#endif
