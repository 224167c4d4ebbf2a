/* SPDX-License-Identifier: BSD-3-Clause
 *
 * What a test can make the stand-in for libcufile do, and ask it. All by environment variables
 * that are read at each call, so that a test sets them with setenv() at any time:
 *
 *   FAKE_CUFILE_FAIL     "cuFileBufRegister=5036,cuFileRead=-5@2": the function fails with this
 *                        number, each time or the nth time from now on only. For cuFileRead and
 *                        cuFileWrite a number below 1000 is an errno, which they give as -1.
 *   FAKE_CUFILE_SHORT    a transfer moves at most so many bytes
 *   FAKE_CUFILE_NVFS     "2.17": nvidia-fs is there, in this version; otherwise it is not
 *   FAKE_CUFILE_COMPAT   0: compat mode is off in the configuration
 *   FAKE_CUFILE_FORCE    1: force_compat_mode
 *   FAKE_CUFILE_P2PDMA   1: use_pci_p2pdma
 *   FAKE_CUFILE_OPEN     1: someone else in the process has the driver open
 */
#ifndef FAKE_CUFILE_H
#define FAKE_CUFILE_H

/* How often a function was called since the last reset: unsigned fake_cufile_calls(name). */
typedef unsigned fake_cufile_calls_fn(const char *function);

/* Forgets calls, counts for "@n", registrations and the open driver. */
typedef void fake_cufile_reset_fn(void);

/* Registered buffers and files: what a test expects to be 0 at its end. */
typedef unsigned fake_cufile_held_fn(void);

#endif
