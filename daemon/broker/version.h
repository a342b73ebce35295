/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* HEARTH_VERSION comes from the build; it is the project's version. */
#ifndef HEARTH_VERSION
#define HEARTH_VERSION "0.0.0"
#endif
#define DAEMON_VERSION HEARTH_VERSION
