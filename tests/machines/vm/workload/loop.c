// SPDX-License-Identifier: Apache-2.0
// loop calls a verb of the control path many times and prints how long a call takes, for benchmarks.

#include "workload.h"

#include <time.h>

int main(int argc, char **argv)
{
	const char *device = NULL, *verb = "query";
	long n = 10000;
	size_t bytes = 4096;
	int opt;

	while ((opt = getopt(argc, argv, "d:n:m:h")) != -1)
		switch (opt) {
		case 'd': device = optarg; break;
		case 'n': n = atol(optarg); break;
		case 'm': bytes = strtoull(optarg, NULL, 0); break;
		default:
			fputs("usage: loop [-d DEVICE] [-n CALLS] [-m BYTES] [query|reg]\n"
			      "  query  query_qp (default)\n"
			      "  reg    reg_mr and dereg_mr of BYTES (default 4096), two calls\n", stderr);
			return 2;
		}
	if (optind < argc)
		verb = argv[optind];
	struct ibv_context *context = open_device(device);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);

	if (!pd || !cq)
		err(1, "alloc_pd, create_cq");
	struct ibv_qp *qp = create_qp(pd, cq);
	void *memory = pages(bytes);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct timespec start, stop;

	clock_gettime(CLOCK_MONOTONIC, &start);
	if (!strcmp(verb, "query")) {
		for (long i = 0; i < n; i++)
			if (ibv_query_qp(qp, &attr, IBV_QP_STATE, &init))
				err(1, "query_qp");
	} else if (!strcmp(verb, "reg")) {
		for (long i = 0; i < n; i += 2) {
			struct ibv_mr *mr = ibv_reg_mr(pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE);
			if (!mr || ibv_dereg_mr(mr))
				err(1, "reg_mr, dereg_mr");
		}
	} else {
		errx(2, "no loop for %s", verb);
	}
	clock_gettime(CLOCK_MONOTONIC, &stop);
	printf("%s %ld calls %.1f ns/call\n", verb, n,
	       ((stop.tv_sec - start.tv_sec) * 1e9 + (stop.tv_nsec - start.tv_nsec)) / n);
	return 0;
}
