// SPDX-License-Identifier: Apache-2.0
// ioctls makes ioctls on a device node, whether they fail or not, prints how many it made, and holds the node until the end of
// standard input. With -s it makes one that does not return before that: its argument is a page that another thread provides.

#include "workload.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

static long page_size;
static char *page;
static int faults;

// input_end waits for the end of standard input.
static void input_end(void)
{
	char c;

	while (read(0, &c, 1) > 0)
		;
}

static void *provide(void *unused)
{
	struct uffdio_zeropage zero = {.range = {(unsigned long)page, page_size}};

	input_end();
	if (ioctl(faults, UFFDIO_ZEROPAGE, &zero))
		err(1, "UFFDIO_ZEROPAGE");
	return unused;
}

// stick makes an ioctl whose argument is not in memory.
static void stick(int fd, unsigned long request)
{
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register missing = {.mode = UFFDIO_REGISTER_MODE_MISSING};
	pthread_t thread;

	page_size = sysconf(_SC_PAGESIZE);
	page = mmap(NULL, page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	faults = syscall(SYS_userfaultfd, O_CLOEXEC);
	missing.range = (struct uffdio_range){(unsigned long)page, page_size};
	if (page == MAP_FAILED || faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &missing))
		err(1, "userfaultfd");
	if (pthread_create(&thread, NULL, provide, NULL))
		errx(1, "pthread_create");
	ioctl(fd, request, page);
	pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
	int stuck = argc == 4 && !strcmp(argv[2], "-s");

	if (argc < 4 || argc % 2) {
		fputs("usage: ioctls NODE REQUEST TIMES [REQUEST TIMES]... | ioctls NODE -s REQUEST\n", stderr);
		return 2;
	}
	int fd = open(argv[1], O_RDWR);

	if (fd < 0)
		err(1, "%s", argv[1]);
	printf("ready %d\n", getpid());
	fflush(stdout);
	if (stuck) {
		stick(fd, strtoul(argv[3], NULL, 0));
		return 0;
	}
	for (int i = 2; i < argc; i += 2) {
		unsigned long request = strtoul(argv[i], NULL, 0);
		int times = atoi(argv[i + 1]);
		char argument[1 << 14] = {};

		for (int n = 0; n < times; n++)
			ioctl(fd, request, argument);
		printf("made %s %d\n", argv[i], times);
		fflush(stdout);
	}
	input_end();
	return 0;
}
