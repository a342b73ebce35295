/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "base/error.h"
#include "base/types.h"

/*
 * Bounded scan of msgpack bytes, before any library allocates for what their
 * headers claim: exactly one complete value, at most 'max_depth' nested arrays
 * and maps, at most 'max_elements' values in all, no ext types, map keys are
 * strings. Iterative, O(n), allocates nothing. (msgpack-c 4.0.0 reserves memory
 * for an array header's count: five bytes dd ff ff ff ff ask for 64 GiB.)
 * -EHEARTH protocol (offset and rule) or too_large (the limit).
 */
enum { SCAN_DEPTH_MAX = 32 };
int msgpack_scan(const void *p, size_t n, uint32_t max_depth, uint32_t max_elements, struct h_error *err);
