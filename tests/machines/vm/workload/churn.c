// SPDX-License-Identifier: Apache-2.0
// churn makes one context, one MR of 1 MiB and one QP, and exits at once: the shortest life of an RDMA process.

#include "workload.h"

int main(int argc, char **argv)
{
	struct ibv_context *context = open_device(argc > 1 ? argv[1] : NULL);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);

	if (!pd || !cq)
		err(1, "alloc_pd, create_cq");
	register_pages(pd, 1 << 20);
	create_qp(pd, cq);
	return 0;
}
