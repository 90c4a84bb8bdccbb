// SPDX-License-Identifier: Apache-2.0
// failures makes verbs fail in the kernel in known ways, and prints "VERB ERRNO COUNT" for each way.

#include "workload.h"

#include <sys/resource.h>

static int times = 3, wrong;

// report prints the result of a verb that should have failed n times with one errno.
static void report(const char *verb, int want, int got[static 256])
{
	for (int e = 0; e < 256; e++) {
		if (!got[e])
			continue;
		printf("%s %s %d\n", verb, e ? strerrorname_np(e) : "0", got[e]);
		wrong |= e != want;
	}
}

// FAIL calls a verb a number of times. failed is an expression for its errno, 0 for success.
#define FAIL(verb, want, failed)                          \
	do {                                              \
		int got[256] = {};                        \
		for (int i = 0; i < times; i++) {         \
			errno = 0;                        \
			got[(uint8_t)(failed)]++;         \
		}                                         \
		report(verb, want, got);                  \
	} while (0)

int main(int argc, char **argv)
{
	const char *device = NULL;
	int opt;

	while ((opt = getopt(argc, argv, "d:n:h")) != -1)
		switch (opt) {
		case 'd': device = optarg; break;
		case 'n': times = atoi(optarg); break;
		default: fputs("usage: failures [-d DEVICE] [-n TIMES]\n", stderr); return 2;
		}
	struct ibv_context *context = open_device(device);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);

	if (!pd || !cq)
		err(1, "alloc_pd, create_cq");
	struct ibv_qp *qp = create_qp(pd, cq);
	size_t size = 1 << 20;
	char *memory = pages(size), *unmapped = pages(size);
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS};
	struct ibv_qp_init_attr absurd = rc_attr(cq);

	munmap(unmapped, size);
	absurd.cap.max_send_wr = 1 << 30;

	FAIL("reg_mr", EFAULT, ibv_reg_mr(pd, unmapped, size, IBV_ACCESS_LOCAL_WRITE) ? 0 : errno);
	FAIL("reg_mr", EINVAL, ibv_reg_mr(pd, memory, size, IBV_ACCESS_REMOTE_WRITE) ? 0 : errno);
	FAIL("create_cq", EINVAL, ibv_create_cq(context, 1 << 30, NULL, NULL, 0) ? 0 : errno);
	FAIL("create_qp", EINVAL, ibv_create_qp(pd, &absurd) ? 0 : errno);
	FAIL("modify_qp", EINVAL, ibv_modify_qp(qp, &rts, IBV_QP_STATE));
	FAIL("destroy_cq", EBUSY, ibv_destroy_cq(cq));
	FAIL("dealloc_pd", EBUSY, ibv_dealloc_pd(pd));

	// The most frequent failure in practice: the limit of locked memory.
	struct rlimit page = {4096, 4096};
	if (setrlimit(RLIMIT_MEMLOCK, &page) || setuid(65534))
		err(1, "drop privileges");
	FAIL("reg_mr", ENOMEM, ibv_reg_mr(pd, memory, size, IBV_ACCESS_LOCAL_WRITE) ? 0 : errno);
	return wrong;
}
