/* SPDX-License-Identifier: Apache-2.0 */
/* Is there a card? Looked at from outside, before any worker starts. */
#pragma once

#include <stdbool.h>

#include "daemon/broker/config.h"

/* A card of NVIDIA's is in the machine, whether it works or not. root: "", or a test's. */
bool card_present(const char *root);

/* What the configuration's backend means on this machine. can: this build has a CUDA backend. */
bool card_wanted(enum config_backend backend, bool can, const char *root);
