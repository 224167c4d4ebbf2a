/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Tests whose children, after fork(2), use the library as any process does.
 */
#ifndef TESTS_CHILDREN_H
#define TESTS_CHILDREN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static inline void skip_where_children_can_not_work(void)
{
#ifdef __SANITIZE_THREAD__
    print_message("SKIP: ThreadSanitizer starts no threads after fork(2)\n");
    skip();
#elif defined(__SANITIZE_ADDRESS__)
    print_message("SKIP: a child waits for ever for a lock of AddressSanitizer's allocator that\n"
                  "another thread held at fork(2)\n");
    skip();
#endif
}

#endif
