/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

/* Bytes that are left. */
static size_t left;

/* The test's own function: sets the number of bytes that are left. */
void fake_limit(size_t bytes)
{
	left = bytes;
}

/* Returns 0, 1 for an invalid size, or 2 if too few bytes are left. */
static __attribute__((noinline)) int take(void *where, size_t bytes)
{
	if (!where || !bytes)
		return 1;
	if (bytes > left)
		return 2;
	left -= bytes;
	*(unsigned long long *)where = 0x700000000000 + left;
	return 0;
}
