// SPDX-License-Identifier: Apache-2.0
// threads creates objects in threads that end at once, while their process continues and keeps the objects: the kernel
// records the thread as the owner, and the thread no longer exists.

#include "workload.h"

#include <pthread.h>
#include <sys/syscall.h>

static struct ibv_context *context;
static size_t bytes = 1 << 20;

static void *make(void *arg)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);

	(void)arg;
	if (!pd || !cq)
		err(1, "alloc_pd, create_cq");
	register_pages(pd, bytes);
	printf("thread %ld made qpn %u\n", syscall(SYS_gettid), create_qp(pd, cq)->qp_num);
	return NULL;
}

int main(int argc, char **argv)
{
	const char *device = NULL;
	int opt, n = 4;

	while ((opt = getopt(argc, argv, "d:n:m:h")) != -1)
		switch (opt) {
		case 'd': device = optarg; break;
		case 'n': n = atoi(optarg); break;
		case 'm': bytes = strtoull(optarg, NULL, 0); break;
		default:
			fputs("usage: threads [-d DEVICE] [-n THREADS] [-m BYTES]\n"
			      "  each thread makes one PD, one CQ, one QP and one MR of BYTES (default 1 MiB)\n", stderr);
			return 2;
		}
	context = open_device(device);
	for (int i = 0; i < n; i++) {
		pthread_t thread;
		if ((errno = pthread_create(&thread, NULL, make, NULL)) || (errno = pthread_join(thread, NULL)))
			err(1, "thread");
	}
	hold();
	return 0;
}
