// SPDX-License-Identifier: Apache-2.0
// forklat measures how long fork() takes, until its standard input ends or SECONDS have passed. It prints "ready", and at the end
// "forks N mean US max US", in microseconds. usage: forklat SECONDS

#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	double end = now() + (argc > 1 ? atof(argv[1]) : 1), max = 0, sum = 0;
	struct pollfd in = {.fd = 0, .events = POLLIN};
	long n = 0;

	printf("ready\n");
	fflush(stdout);
	while (now() < end && poll(&in, 1, 1) == 0) {
		double begin = now(), took;
		pid_t p = fork();

		if (!p)
			_exit(0);
		took = now() - begin;
		waitpid(p, NULL, 0);
		n++;
		sum += took;
		if (took > max)
			max = took;
	}
	printf("forks %ld mean %.0f max %.0f\n", n, n ? sum / n * 1e6 : 0, max * 1e6);
	return 0;
}
