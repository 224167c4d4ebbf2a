/* SPDX-License-Identifier: BSD-3-Clause
 *
 * How long tests wait for what must come. It ends hangs and never says that something is slow: the
 * tests may run beside others' work, on a slow machine, and instrumented. Less than ctest's limit,
 * so that the test itself says what it waited for.
 */
#ifndef TESTS_PATIENCE_H
#define TESTS_PATIENCE_H

#include <stdint.h>

#define PATIENCE_S  200
#define PATIENCE_NS (PATIENCE_S * UINT64_C(1000000000))

#endif
