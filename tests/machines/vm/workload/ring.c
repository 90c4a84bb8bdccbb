// SPDX-License-Identifier: Apache-2.0
// ring is a rank of a job: a step computes, and then moves data around a ring of ranks as an all-reduce of NCCL does. It is the ground
// truth for who waits for whom.
//
// It has a queue pair to the next rank and one to the rank before. It posts receives ahead, a few at a time, and allows each by a write
// into the memory of the rank before, which sends nothing earlier. A part is passed on when it has come.

#include "workload.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>

#define AHEAD 8
#define WRITES 64 // every 64th write is signaled

struct unique_id {
	char internal[128];
};

static struct ibv_qp *next, *before;
static struct ibv_cq *received_cq, *sent_cq;
static struct ibv_mr *mr;
static uint64_t *allowed, *allow; // parts that the next rank allows, and that this rank allows
static uint64_t remote_address;
static uint32_t remote_key;
static uint64_t posted, received, sent, completed; // parts
static uint64_t writes;
static int bytes = 65536, ranks = 8;
static volatile int compute; // microseconds
static double waited, begun; // for receives; since when

static int poll_cq(struct ibv_cq *cq, enum ibv_wc_opcode *opcode)
{
	struct ibv_wc wc;
	int n = ibv_poll_cq(cq, 1, &wc);

	if (n < 0 || (n && wc.status))
		errx(1, "completion: %d, status %d", n, n ? wc.status : 0);
	if (n)
		*opcode = wc.opcode;
	return n;
}

static void post_receive(void)
{
	struct ibv_sge data = {(uintptr_t)mr->addr + 4096, bytes, mr->lkey}, flag = {(uintptr_t)allow, 8, mr->lkey};
	struct ibv_recv_wr wr = {.sg_list = &data, .num_sge = 1}, *bad;
	struct ibv_send_wr write = {
		.sg_list = &flag,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_INLINE | (++writes % WRITES ? 0 : IBV_SEND_SIGNALED),
		.wr.rdma = {.remote_addr = remote_address, .rkey = remote_key},
	}, *bad_write;

	if (posted == received)
		begun = now(CLOCK_MONOTONIC);
	if ((errno = ibv_post_recv(before, &wr, &bad)))
		err(1, "post_recv");
	*allow = ++posted;
	if ((errno = ibv_post_send(before, &write, &bad_write)))
		err(1, "write");
}

static void post_send(void)
{
	struct ibv_sge data = {(uintptr_t)mr->addr + 4096 + bytes, bytes, mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &data, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;

	if ((errno = ibv_post_send(next, &wr, &bad)))
		err(1, "post_send");
	sent++;
}

// reduce moves all parts of a step.
static void reduce(void)
{
	uint64_t first = received, end = first + 2 * (ranks - 1);
	enum ibv_wc_opcode opcode;

	while (received < end || completed < end) {
		int moved = 0;

		for (; posted < end && posted < received + AHEAD; moved++)
			post_receive();
		for (; sent < end && sent < received + 1 && sent < *(volatile uint64_t *)allowed; moved++)
			post_send();
		for (; poll_cq(received_cq, &opcode); moved++)
			if (++received == posted)
				waited += now(CLOCK_MONOTONIC) - begun;
		for (; poll_cq(sent_cq, &opcode); moved++)
			completed += opcode == IBV_WC_SEND;
		if (!moved)
			usleep(300);
	}
}

static struct ibv_qp *make_qp(struct ibv_pd *pd)
{
	struct ibv_qp_init_attr attr = rc_attr(sent_cq);
	struct ibv_qp *qp;

	attr.recv_cq = received_cq;
	attr.cap.max_send_wr = 256;
	attr.cap.max_inline_data = 8;
	qp = ibv_create_qp(pd, &attr);
	if (!qp)
		err(1, "create_qp");
	return qp;
}

// read_orders sets how long a step computes.
static void *read_orders(void *unused)
{
	int us;

	while (scanf("%d", &us) == 1)
		compute = us;
	exit(0);
	return unused;
}

static const char usage[] =
	"usage: ring [-d DEVICE] [-l LIBRARY] [-D GPU] [-r RANK] [-n RANKS] [-b BYTES]\n"
	"  It prints a line: its GID, the numbers of its queue pairs to the next rank and to the rank before, an address and\n"
	"  a key. It reads the line that the next rank printed, and the line that the rank before printed. Each number that it\n"
	"  reads after these lines is how long a step computes, in microseconds; the first number begins the job.\n"
	"  Each second it prints the number of steps and the seconds in which it waited for receives.\n"
	"  -l  a library with NCCL's functions, which it calls for each step\n"
	"  -D  a device file that it opens\n";

int main(int argc, char **argv)
{
	const char *device = NULL, *library = NULL, *gpu = NULL;
	const int index = 1; // of the GID: the IPv4 address
	int opt, rank = 0;
	unsigned long steps = 0;

	while ((opt = getopt(argc, argv, "d:l:D:r:n:b:h")) != -1)
		switch (opt) {
		case 'd': device = optarg; break;
		case 'l': library = optarg; break;
		case 'D': gpu = optarg; break;
		case 'r': rank = atoi(optarg); break;
		case 'n': ranks = atoi(optarg); break;
		case 'b': bytes = atoi(optarg); break;
		default: fputs(usage, stderr); return 2;
		}
	void *nccl = library ? dlopen(library, RTLD_NOW) : NULL;
	int (*init)(void **, int, struct unique_id, int) = nccl ? (int (*)(void **, int, struct unique_id, int))dlsym(nccl, "ncclCommInitRank") : NULL;
	int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *) =
		nccl ? (int (*)(const void *, void *, size_t, int, int, void *, void *))dlsym(nccl, "ncclAllReduce") : NULL;
	if (library && (!init || !all_reduce))
		errx(1, "%s", dlerror());
	if (gpu && open(gpu, O_RDWR) < 0)
		err(1, "%s", gpu);

	struct ibv_context *context = open_device(device);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	union ibv_gid gid, gids[2];
	size_t size = 4096 + 2 * (size_t)bytes;

	received_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	sent_cq = ibv_create_cq(context, 256, NULL, NULL, 0);
	if (!pd || !received_cq || !sent_cq || ibv_query_gid(context, 1, index, &gid))
		err(1, "%s", ibv_get_device_name(context->device));
	mr = ibv_reg_mr(pd, pages(size), size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!mr)
		err(1, "reg_mr");
	allowed = mr->addr;
	allow = allowed + 1;
	next = make_qp(pd);
	before = make_qp(pd);
	printf("ends %016lx%016lx %u %u %lu %u\n", be64toh(gid.global.subnet_prefix), be64toh(gid.global.interface_id), next->qp_num,
	       before->qp_num, (unsigned long)mr->addr, mr->rkey);
	fflush(stdout);
	for (int i = 0; i < 2; i++) {
		unsigned long high, low, address;
		unsigned int to_next, to_before, key;

		if (scanf("%16lx%16lx %u %u %lu %u", &high, &low, &to_next, &to_before, &address, &key) != 6)
			errx(1, "no other end");
		gids[i].global.subnet_prefix = htobe64(high);
		gids[i].global.interface_id = htobe64(low);
		if (i == 0) { // the next rank
			struct ibv_qp_attr writable = {.qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
			connect_to(next, to_before, gids[i], index);
			if (ibv_modify_qp(next, &writable, IBV_QP_ACCESS_FLAGS))
				err(1, "allow writes");
			continue;
		}
		connect_to(before, to_next, gids[i], index);
		remote_address = address;
		remote_key = key;
	}
	printf("connected\n");
	fflush(stdout);

	pthread_t orders;
	int first;
	if (scanf("%d", &first) != 1)
		return 0;
	compute = first;
	pthread_create(&orders, NULL, read_orders, NULL);
	struct unique_id id = {.internal = "ring"};
	void *communicator = NULL;
	if (init)
		init(&communicator, ranks, id, rank);
	for (double last = now(CLOCK_MONOTONIC);; steps++) {
		usleep(compute);
		if (all_reduce)
			all_reduce(mr->addr, mr->addr, bytes / 4, 7, 0, communicator, NULL);
		reduce();
		if (now(CLOCK_MONOTONIC) - last >= 1) {
			printf("steps %lu waited %.6f\n", steps, waited);
			fflush(stdout);
			last = now(CLOCK_MONOTONIC);
		}
	}
}
