/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#ifndef ACCELSCOPE_FINE_H
#define ACCELSCOPE_FINE_H

/*
 * The upper bounds of the buckets in whole nanoseconds, rounded down, which does not change the comparison with a
 * whole number. User space sets them, because it can raise 2 to a quarter.
 */
const volatile __u64 fine_bounds[FINE_BUCKETS - 1];

/* The first bucket whose bound is not below ns. */
static inline __attribute__((always_inline)) __u32 fine_bucket(__u64 ns)
{
	__u32 low = 0, high = FINE_BUCKETS - 1;

	for (int i = 0; i < 7; i++) {
		__u32 middle = (low + high) / 2;

		if (low >= high || middle >= FINE_BUCKETS - 1)
			break;
		if (fine_bounds[middle] >= ns)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

#endif
