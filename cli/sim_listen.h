/* SPDX-License-Identifier: BSD-3-Clause
 *
 * gpunvme sim --listen, a part of gpunvme sim.
 */
#ifndef CLI_SIM_LISTEN_H
#define CLI_SIM_LISTEN_H

/* The arguments as main() has them, from "gpunvme sim" on; returns the exit code. */
int cli_sim_listen(int argc, char **argv);

#endif
