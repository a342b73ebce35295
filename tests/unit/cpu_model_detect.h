/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "base/types.h"

extern bool cpu_model_refuses_amx; /* as a kernel may */
