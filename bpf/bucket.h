/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#ifndef ACCELSCOPE_BUCKET_H
#define ACCELSCOPE_BUCKET_H

#include "maps.h"

/*
 * The bucket of a duration: ceil(log2) in units of 2^-30 s, so that the bounds are exact powers of two of a second.
 * 2^30 / 10^9 is 1 + 4948730/2^26.
 */
static __always_inline __u32 bucket(__u64 ns)
{
	__u32 log = 0;
	__u64 v;

	if (ns > 1ULL << 40)
		return BUCKETS - 1;
	v = ns + ((ns * 4948730) >> 26);
	if (v <= 1 << 10)
		return 0;
	v--;
	if (v >> 32)
		v >>= 32, log += 32;
	if (v >> 16)
		v >>= 16, log += 16;
	if (v >> 8)
		v >>= 8, log += 8;
	if (v >> 4)
		v >>= 4, log += 4;
	if (v >> 2)
		v >>= 2, log += 2;
	if (v >> 1)
		log += 1;
	log++;
	log -= 10;
	return log < BUCKETS ? log : BUCKETS - 1;
}

#endif
