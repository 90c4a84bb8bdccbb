// SPDX-License-Identifier: Apache-2.0
// ioctls makes ioctls on a device node, whether they fail or not, prints how many it made, and holds the node.

#include "workload.h"

#include <fcntl.h>
#include <sys/ioctl.h>

int main(int argc, char **argv)
{
	if (argc < 4 || argc % 2) {
		fputs("usage: ioctls NODE REQUEST TIMES [REQUEST TIMES]...\n", stderr);
		return 2;
	}
	int fd = open(argv[1], O_RDWR);

	if (fd < 0)
		err(1, "%s", argv[1]);
	printf("ready %d\n", getpid());
	fflush(stdout);
	for (int i = 2; i < argc; i += 2) {
		unsigned long request = strtoul(argv[i], NULL, 0);
		int times = atoi(argv[i + 1]);
		char argument[1 << 14] = {};

		for (int n = 0; n < times; n++)
			ioctl(fd, request, argument);
		printf("made %s %d\n", argv[i], times);
		fflush(stdout);
	}
	char end;

	while (read(0, &end, 1) > 0)
		;
	return 0;
}
