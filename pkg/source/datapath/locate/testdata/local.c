// SPDX-License-Identifier: Apache-2.0
/* A program that contains functions of a library without exporting them, and the text with the library's version. */
#include <stdio.h>

static const char version[] = "Fake version 2.28.9+cuda13.0";

__attribute__((noinline)) static long reserve(long n)
{
	return puts(version) + n;
}

/* The name of the next function ends with the name of the function above. */
__attribute__((noinline)) long preserve(long n)
{
	return reserve(n) * 2;
}

__attribute__((noinline)) long allocate(long n)
{
	return preserve(n) + 1;
}

int main(int argc, char **argv)
{
	return allocate(argc) < 0;
}
