// SPDX-License-Identifier: Apache-2.0
// manymaps maps a file many times in several processes, and waits until its standard input ends: what the kernel changes with each
// uprobe. It needs no privilege. usage: manymaps FILE MAPPINGS PROCESSES

#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static void map(int f, size_t len, int n)
{
	for (int i = 0; i < n; i++)
		if (mmap(NULL, len, PROT_READ, MAP_PRIVATE, f, 0) == MAP_FAILED) {
			perror("mmap");
			exit(1);
		}
}

int main(int argc, char **argv)
{
	struct stat st;
	int f, n, processes, ready[2];
	char c;

	if (argc != 4 || (f = open(argv[1], O_RDONLY | O_CLOEXEC)) < 0 || fstat(f, &st) || pipe(ready)) {
		perror(argc > 1 ? argv[1] : "usage: manymaps FILE MAPPINGS PROCESSES");
		return 1;
	}
	n = atoi(argv[2]);
	processes = atoi(argv[3]);
	for (int i = 1; i < processes; i++) // the first process is this one
		switch (fork()) {
		case -1: perror("fork"); return 1;
		case 0:
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			map(f, st.st_size, n);
			if (write(ready[1], "x", 1) == 1)
				pause();
			_exit(0);
		}
	map(f, st.st_size, n);
	for (int i = 1; i < processes; i++)
		if (read(ready[0], &c, 1) != 1)
			return 1;
	printf("ready %d\n", getpid());
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
	return 0;
}
