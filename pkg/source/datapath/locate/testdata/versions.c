// SPDX-License-Identifier: Apache-2.0
/* A library with a function in two versions, an alias, an object and a function of another library. */
#include <stdlib.h>

__asm__(".symver old_allocate, allocate@FAKE_1");
__asm__(".symver new_allocate, allocate@@FAKE_2");

int old_allocate(void **ptr, size_t size)
{
	*ptr = malloc(size);
	return !*ptr;
}

int new_allocate(void **ptr, size_t size)
{
	*ptr = calloc(1, size);
	return 2 * !*ptr;
}

int reserve(void **ptr, size_t size)
{
	*ptr = realloc(*ptr, size);
	return !*ptr;
}

int alias(void **ptr, size_t size) __attribute__((alias("reserve")));

int table[4] = {1, 2, 3, 4};
