/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Which program this is, to the bit: the linker's build id (the GNU note, a hash over what was linked). */

#define BUILD_ID_TEXT 41

/* Hex, at most 40 digits; "unknown" if the program was linked without one. */
void build_id(char out[BUILD_ID_TEXT]);
