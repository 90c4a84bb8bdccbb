/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Recognizes the files of uverbs devices. */
#ifndef ACCELSCOPE_UVERBS_H
#define ACCELSCOPE_UVERBS_H

#include "kernel.h"

/*
 * The device numbers of the uverbs devices: their permanent minors in a major shared with other devices, and a
 * major of their own.
 */
__u32 uverbs_first[2];
__u32 uverbs_last[2];

static __always_inline bool is_uverbs(__u32 rdev)
{
	return rdev && ((rdev >= uverbs_first[0] && rdev <= uverbs_last[0]) ||
			(rdev >= uverbs_first[1] && rdev <= uverbs_last[1]));
}

#endif
