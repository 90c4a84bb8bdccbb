// SPDX-License-Identifier: Apache-2.0
// receives is one end of a connection on a device, which waits for messages or sends them late, and prints how long it
// waited: the ground truth for waits for receives.

#include "workload.h"

static void post_receive(struct ibv_qp *qp, struct ibv_sge *sge)
{
	struct ibv_recv_wr wr = {.sg_list = sge, .num_sge = 1}, *bad;

	if ((errno = ibv_post_recv(qp, &wr, &bad)))
		err(1, "post_recv");
}

static void await_completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		usleep(100);
	if (n < 0 || wc.status)
		errx(1, "completion: %d, status %d", n, wc.status);
}

static const char usage[] =
	"usage: receives [-d DEVICE] [-g INDEX] [-n MESSAGES] [-a RECEIVES] [-u US]\n"
	"  It prints the number of its queue pair, and reads the number of the other end from standard input.\n"
	"  -a  keeps so many receives posted (default: 1, posted when a message is awaited)\n"
	"  -u  sends, and sleeps before each message\n";

int main(int argc, char **argv)
{
	const char *device = NULL;
	int opt, n = 1, ahead = 0, index = 1, us = -1;
	double waited = 0;
	unsigned peer;

	while ((opt = getopt(argc, argv, "d:g:n:a:u:h")) != -1)
		switch (opt) {
		case 'd': device = optarg; break;
		case 'g': index = atoi(optarg); break;
		case 'n': n = atoi(optarg); break;
		case 'a': ahead = atoi(optarg); break;
		case 'u': us = atoi(optarg); break;
		default: fputs(usage, stderr); return 2;
		}
	struct ibv_context *context = open_device(device);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	union ibv_gid gid;

	if (!pd || !cq || ibv_query_gid(context, 1, index, &gid))
		err(1, "%s", ibv_get_device_name(context->device));
	struct ibv_mr *mr = register_pages(pd, 4096);
	struct ibv_sge sge = {.addr = (uintptr_t)mr->addr, .length = 64, .lkey = mr->lkey};
	struct ibv_qp *qp = create_qp(pd, cq);

	printf("qpn %u\n", qp->qp_num);
	fflush(stdout);
	if (scanf("%u", &peer) != 1)
		errx(1, "no other end");
	connect_to(qp, peer, gid, index);
	printf("connected\n");
	fflush(stdout);
	for (int i = 0; i < ahead; i++)
		post_receive(qp, &sge);
	for (int i = 0; i < n; i++) {
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
		double begun = now(CLOCK_MONOTONIC);

		if (us < 0) {
			if (!ahead)
				post_receive(qp, &sge);
			await_completion(cq);
			waited += now(CLOCK_MONOTONIC) - begun;
			if (ahead)
				post_receive(qp, &sge);
			continue;
		}
		usleep(us);
		if ((errno = ibv_post_send(qp, &wr, &bad)))
			err(1, "post_send");
		await_completion(cq);
	}
	printf("waited %.6f\n", waited);
	hold();
	return 0;
}
