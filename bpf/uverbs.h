/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Which files are those of uverbs devices. */
#ifndef ACCELSCOPE_UVERBS_H
#define ACCELSCOPE_UVERBS_H

#include "kernel.h"

/*
 * The device numbers of the uverbs devices: of the minors that are theirs for good, beside those of other devices, and of a major
 * of their own.
 */
__u32 uverbs_first[2];
__u32 uverbs_last[2];

static __always_inline bool is_uverbs(__u32 rdev)
{
	return rdev && ((rdev >= uverbs_first[0] && rdev <= uverbs_last[0]) ||
			(rdev >= uverbs_first[1] && rdev <= uverbs_last[1]));
}

#endif
