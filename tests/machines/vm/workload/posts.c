// SPDX-License-Identifier: Apache-2.0
// posts moves data between its own queue pairs and prints what it posted and polled, to the byte: the ground truth for
// probes on the data path. Requests that the provider refuses (-r) or that are aborted (always one, with -x) are not
// counted.

#include "workload.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

enum { depth = 64, most = 16, grh = 40 };

static const uint64_t receive_id = -1;

static struct op {
	const char *name;
	enum ibv_wr_opcode code;
	int receives; // the remote end must post a receive
} ops[] = {
	{"write", IBV_WR_RDMA_WRITE, 0},
	{"write_imm", IBV_WR_RDMA_WRITE_WITH_IMM, 1},
	{"read", IBV_WR_RDMA_READ, 0},
	{"send", IBV_WR_SEND, 1},
	{"send_imm", IBV_WR_SEND_WITH_IMM, 1},
	{"fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD, 0},
	{"cmp_swap", IBV_WR_ATOMIC_CMP_AND_SWP, 0},
	{"ud", IBV_WR_SEND, 1},
	{NULL, 0, 0},
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_cq_ex *cqx;
static const char *parts; // that are read of completions of cqx: o opcode, l length, q queue pair
static struct ibv_mr *mr;
static struct ibv_ah *ah;
static struct ibv_srq *srq;
static struct op *op = ops;
static int chain = 1, sges = 1, gid_index = 1, retries = 7, ex, inlined, ud, shared, unreceived;
static uint32_t size = 4096;
static uint64_t posted, posted_bytes, receives, received, received_bytes;

struct end {
	struct ibv_qp *qp;
	struct ibv_qp_ex *qpx;
};

static struct end new_end(void)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.srq = srq,
		.qp_type = ud ? IBV_QPT_UD : IBV_QPT_RC,
		.cap = {
			.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = most, .max_recv_sge = 1,
			.max_inline_data = inlined ? size : 0,
		},
		.pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | (ex ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.send_ops_flags = ud ? IBV_QP_EX_WITH_SEND : IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
			IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
			IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
	};
	struct end e = {.qp = ibv_create_qp_ex(context, &attr)};

	if (!e.qp)
		err(1, "create_qp");
	if (ex)
		e.qpx = ibv_qp_to_qp_ex(e.qp);
	return e;
}

static void change(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
	errno = ibv_modify_qp(qp, &attr, mask);
	if (errno)
		err(1, "modify_qp to state %d", attr.qp_state);
}

static struct ibv_ah_attr address(void)
{
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = gid_index, .hop_limit = 64}};

	if (ibv_query_gid(context, 1, gid_index, &attr.grh.dgid))
		err(1, "GID %d", gid_index);
	return attr;
}

// to_rts connects a queue pair to another one of this process.
static void to_rts(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1234,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .max_dest_rd_atomic = 16,
		.min_rnr_timer = 12, .ah_attr = address(),
	};
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = retries, .rnr_retry = 7, .max_rd_atomic = 16,
	};

	change(qp, init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
	change(qp, rtr, ud ? IBV_QP_STATE : IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	change(qp, rts, ud ? IBV_QP_STATE | IBV_QP_SQ_PSN : IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
		IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static void post_receives(struct ibv_qp *qp)
{
	struct ibv_sge sge = {.addr = (uintptr_t)mr->addr, .length = size + grh, .lkey = mr->lkey};
	struct ibv_recv_wr wr[most] = {}, *bad;

	for (int i = 0; i < chain; i++) {
		wr[i].wr_id = receive_id;
		wr[i].sg_list = &sge;
		wr[i].num_sge = 1;
		wr[i].next = i + 1 < chain ? &wr[i + 1] : NULL;
	}
	errno = srq ? ibv_post_srq_recv(srq, wr, &bad) : ibv_post_recv(qp, wr, &bad);
	if (errno)
		err(1, "post_recv");
	receives += chain;
}

// split makes n scatter/gather elements of size bytes.
static int split(struct ibv_sge *list)
{
	uint32_t left = size;

	for (int i = 0; i < sges; i++) {
		list[i].addr = (uintptr_t)mr->addr + (size - left);
		list[i].length = i + 1 < sges ? size / sges : left;
		list[i].lkey = mr->lkey;
		left -= list[i].length;
	}
	return sges;
}

static uint64_t there(void) { return (uintptr_t)mr->addr + mr->length / 2; }

// post_chain posts n requests and returns how many were taken. Only the last request is signaled.
static int post_chain(struct end *e, struct end *peer, int n, uint64_t id)
{
	struct ibv_sge list[most];
	struct ibv_send_wr wr[2 * depth] = {}, *bad = NULL;
	int parts = split(list);

	for (int i = 0; i < n; i++) {
		wr[i] = (struct ibv_send_wr){
			.wr_id = id, .sg_list = list, .num_sge = parts, .opcode = op->code, .imm_data = 7,
			.send_flags = (i + 1 == n ? IBV_SEND_SIGNALED : 0) | (inlined ? IBV_SEND_INLINE : 0),
			.next = i + 1 < n ? &wr[i + 1] : NULL,
		};
		if (ud) {
			wr[i].wr.ud.ah = ah;
			wr[i].wr.ud.remote_qpn = peer->qp->qp_num;
			wr[i].wr.ud.remote_qkey = 0x1234;
		} else if (op->code == IBV_WR_ATOMIC_FETCH_AND_ADD || op->code == IBV_WR_ATOMIC_CMP_AND_SWP) {
			wr[i].wr.atomic.remote_addr = there();
			wr[i].wr.atomic.rkey = mr->rkey;
		} else {
			wr[i].wr.rdma.remote_addr = there();
			wr[i].wr.rdma.rkey = mr->rkey;
		}
	}
	errno = ibv_post_send(e->qp, wr, &bad);
	return errno ? bad - wr : n;
}

// begin_chain posts n requests through ibv_wr_*, and leaves out the call that ends the chain.
static void begin_chain(struct end *e, struct end *peer, int n, uint64_t id)
{
	struct ibv_qp_ex *q = e->qpx;
	struct ibv_sge list[most];
	int parts = split(list);

	ibv_wr_start(q);
	for (int i = 0; i < n; i++) {
		q->wr_id = id;
		q->wr_flags = i + 1 == n ? IBV_SEND_SIGNALED : 0;
		switch ((int)op->code) {
		case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(q, mr->rkey, there()); break;
		case IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_rdma_write_imm(q, mr->rkey, there(), 7); break;
		case IBV_WR_RDMA_READ: ibv_wr_rdma_read(q, mr->rkey, there()); break;
		case IBV_WR_SEND: ibv_wr_send(q); break;
		case IBV_WR_SEND_WITH_IMM: ibv_wr_send_imm(q, 7); break;
		case IBV_WR_ATOMIC_FETCH_AND_ADD: ibv_wr_atomic_fetch_add(q, mr->rkey, there(), 1); break;
		case IBV_WR_ATOMIC_CMP_AND_SWP: ibv_wr_atomic_cmp_swp(q, mr->rkey, there(), 0, 1); break;
		}
		if (ud)
			ibv_wr_set_ud_addr(q, ah, peer->qp->qp_num, 0x1234);
		if (inlined && parts == 1)
			ibv_wr_set_inline_data(q, mr->addr, size);
		else if (inlined) {
			struct ibv_data_buf data[most];
			for (int j = 0; j < parts; j++)
				data[j] = (struct ibv_data_buf){(void *)(uintptr_t)list[j].addr, list[j].length};
			ibv_wr_set_inline_data_list(q, parts, data);
		} else if (parts == 1)
			ibv_wr_set_sge(q, list[0].lkey, list[0].addr, list[0].length);
		else
			ibv_wr_set_sge_list(q, parts, list);
	}
}

static void post(struct end *e, struct end *peer, uint64_t id)
{
	if (ex) {
		begin_chain(e, peer, chain, id);
		errno = ibv_wr_complete(e->qpx);
		if (errno)
			err(1, "wr_complete");
	} else if (post_chain(e, peer, chain, id) != chain) {
		err(1, "post_send");
	}
	posted += chain;
	posted_bytes += (uint64_t)chain * size;
}

// drain polls until n sends and all receives have completed.
static void drain(int n)
{
	struct ibv_wc wc[8];

	while ((n > 0 || received < receives) && !ended) {
		int got = ibv_poll_cq(cq, 8, wc);

		if (got < 0)
			errx(1, "poll_cq");
		for (int i = 0; i < got; i++) {
			if (wc[i].status != IBV_WC_SUCCESS)
				errx(1, "completion: %s", ibv_wc_status_str(wc[i].status));
			if (wc[i].opcode & IBV_WC_RECV) {
				received++;
				received_bytes += wc[i].byte_len - (ud ? grh : 0);
			} else {
				n--;
			}
		}
	}
}

// Before rdma-core 55, next_poll of Soft-RoCE ends the poll itself if there is no further completion, and end_poll
// would remove another. Debian 12 has version 44, whose struct ibv_qp_ex lacks wr_flush; Debian 13 has 56.
static const int next_poll_ends = sizeof(struct ibv_qp_ex) <= 352;

// drain_extended is drain with ibv_start_poll. It reads only the requested parts: the wr_id distinguishes sends from
// receives, and the size of messages is known.
static void drain_extended(int n)
{
	struct ibv_poll_cq_attr attr = {};

	while (n > 0 || received < receives) {
		int ret = ibv_start_poll(cqx, &attr);

		if (ret == ENOENT)
			continue;
		if (ret)
			errx(1, "start_poll: %s", strerror(ret));
		for (; !ret; ret = ibv_next_poll(cqx)) {
			int receive = cqx->wr_id == receive_id;

			if (cqx->status != IBV_WC_SUCCESS)
				errx(1, "completion: %s", ibv_wc_status_str(cqx->status));
			if (strchr(parts, 'o') && !!(ibv_wc_read_opcode(cqx) & IBV_WC_RECV) != receive)
				errx(1, "opcode %d of a %s", ibv_wc_read_opcode(cqx), receive ? "receive" : "send");
			if (strchr(parts, 'l') && receive && ibv_wc_read_byte_len(cqx) != size + (ud ? grh : 0))
				errx(1, "%u bytes received", ibv_wc_read_byte_len(cqx));
			if (strchr(parts, 'q') && !ibv_wc_read_qp_num(cqx))
				errx(1, "no queue pair");
			received += receive;
			received_bytes += receive ? size : 0;
			n -= !receive;
		}
		if (ret != ENOENT)
			errx(1, "next_poll: %s", strerror(ret));
		if (!next_poll_ends)
			ibv_end_poll(cqx);
	}
}

// post_all posts one chain on each pair and waits for the completions.
static void post_all(struct end *a, struct end *b, int pairs, uint64_t id)
{
	if (op->receives && !unreceived)
		for (int q = 0; q < pairs; q++)
			post_receives(b[q].qp);
	for (int q = 0; q < pairs; q++)
		post(&a[q], &b[q], id);
	if (parts)
		drain_extended(pairs);
	else
		drain(pairs);
}

static void set_up(const char *device, int pairs)
{
	size_t room = 2 * ((size + grh + 4095) & ~4095ul);
	struct ibv_ah_attr to;

	context = open_device(device);
	pd = ibv_alloc_pd(context);
	if (parts) {
		struct ibv_cq_init_attr_ex attr = {
			.cqe = 4 * depth * pairs, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_QP_NUM,
		};

		cqx = ibv_create_cq_ex(context, &attr);
		cq = cqx ? ibv_cq_ex_to_cq(cqx) : NULL;
	} else {
		cq = ibv_create_cq(context, 4 * depth * pairs, NULL, NULL, 0);
	}
	if (!pd || !cq)
		err(1, "alloc_pd, create_cq");
	mr = ibv_reg_mr(pd, pages(room), room, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		IBV_ACCESS_REMOTE_ATOMIC);
	if (!mr)
		err(1, "reg_mr");
	if (shared) {
		struct ibv_srq_init_attr attr = {.attr = {.max_wr = depth * pairs, .max_sge = 1}};

		srq = ibv_create_srq(pd, &attr);
		if (!srq)
			err(1, "create_srq");
	}
	to = address();
	ah = ibv_create_ah(pd, &to);
	if (!ah)
		err(1, "create_ah");
}

// connect_pairs connects the posting end last: nothing is between its change to RTS and the first post.
static void connect_pairs(struct end *a, struct end *b, int pairs)
{
	for (int i = 0; i < pairs; i++) {
		a[i] = new_end();
		b[i] = new_end();
		to_rts(b[i].qp, a[i].qp->qp_num);
		to_rts(a[i].qp, b[i].qp->qp_num);
	}
}

// connect_ordinary connects a pair with an ordinary CQ, which stays.
static void connect_ordinary(void)
{
	struct ibv_cq *extended = cq;
	struct end a, b;

	cq = ibv_create_cq(context, depth, NULL, NULL, 0);
	if (!cq)
		err(1, "create_cq");
	connect_pairs(&a, &b, 1);
	cq = extended;
}

// abort_connection destroys a queue pair before it is connected, like a program whose connection is refused.
static void abort_connection(void)
{
	struct end e = new_end();
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1234};

	change(e.qp, init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
	if (ibv_destroy_qp(e.qp))
		err(1, "destroy_qp");
}

static void tear_down(struct end *a, struct end *b, int pairs)
{
	for (int i = 0; i < pairs; i++)
		if (ibv_destroy_qp(a[i].qp) || ibv_destroy_qp(b[i].qp))
			err(1, "destroy_qp");
	if (srq && ibv_destroy_srq(srq))
		err(1, "destroy_srq");
	if (ibv_destroy_ah(ah) || ibv_dereg_mr(mr) || ibv_destroy_cq(cq) || ibv_dealloc_pd(pd) || ibv_close_device(context))
		err(1, "close");
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

// spin polls an empty CQ and prints, each second, the number of polls per second of CPU time.
static void spin(void)
{
	struct ibv_wc wc;

	while (!ended) {
		double start = now(CLOCK_PROCESS_CPUTIME_ID), used;
		long n = 0;
		do {
			for (int i = 0; i < 1000; i++)
				if (ibv_poll_cq(cq, 1, &wc))
					errx(1, "the CQ is not empty");
			n += 1000;
			used = now(CLOCK_PROCESS_CPUTIME_ID) - start;
		} while (used < 0.5);
		printf("polls %.0f\n", n / used);
		fflush(stdout);
	}
}

// poll_one polls one completion, if there is one.
static int poll_one(enum ibv_wc_status *status)
{
	struct ibv_poll_cq_attr attr = {};
	struct ibv_wc wc;
	int got;

	if (!parts) {
		got = ibv_poll_cq(cq, 1, &wc);
		if (got < 0)
			errx(1, "poll_cq");
		*status = wc.status;
		return got;
	}
	got = ibv_start_poll(cqx, &attr);
	if (got == ENOENT)
		return 0;
	if (got)
		errx(1, "start_poll: %s", strerror(got));
	*status = cqx->status;
	ibv_end_poll(cqx);
	return 1;
}

// die_alone connects with a process that destroys its queue pair, posts to it without an answer, and prints the completions.
static void die_alone(int peer, pid_t child)
{
	struct end e = new_end();
	uint32_t number = e.qp->qp_num, other;
	enum ibv_wc_status status;
	int failed[32] = {};

	if (write(peer, &number, sizeof number) != sizeof number || read(peer, &other, sizeof other) != sizeof other)
		err(1, "peer");
	to_rts(e.qp, other);
	if (write(peer, "", 1) != 1 || read(peer, &number, 1) != 1)
		err(1, "peer");
	if (!child) { // the process may end before its queue pair: a reader of /proc/PID/maps delays this
		if (ibv_destroy_qp(e.qp) || write(peer, "", 1) != 1)
			err(1, "ibv_destroy_qp");
		_exit(0);
	}
	if (read(peer, &number, 1) != 1)
		err(1, "peer");
	waitpid(child, NULL, 0);
	if (post_chain(&e, &e, chain, 0) != chain)
		err(1, "post_send");
	for (int i = 0; i < chain;) {
		int got = poll_one(&status);
		if (got)
			failed[status % 32]++;
		i += got;
	}
	printf("posted %d %llu\nretry_exceeded %d\nwr_flush_error %d\ndone\n", chain, (unsigned long long)chain * size,
	       failed[IBV_WC_RETRY_EXC_ERR], failed[IBV_WC_WR_FLUSH_ERR]);
}

// wait_for_line prints a word and waits for a line on standard input. It returns 0 at its end.
static int wait_for_line(const char *word)
{
	char line[16];

	puts(word);
	fflush(stdout);
	return fgets(line, sizeof line, stdin) != NULL;
}

static void usage(void)
{
	fputs("usage: posts [-d DEVICE,...] [-H DEVICE] [-t] [-T] [-o OPERATION] [-n CHAINS] [-l CHAIN] [-s BYTES] [-g ELEMENTS] [-q PAIRS]\n"
	      "             [-x] [-i] [-r] [-S] [-c PARTS] [-f PROCESSES] [-u MICROSECONDS] [-a] [-w] [-b | -e | -k | -p]\n"
	      "  -d  opens each device in turn, posts and closes it, but for the last one\n"
	      "  -H  holds a connected pair on this device from the beginning on\n"
	      "  -t  wait for a line on standard input before each device is opened\n"
	      "  -T  wait for a line before each device is closed\n"
	      "  -o  write (default), write_imm, read, send, send_imm, fetch_add, cmp_swap, ud\n"
	      "  -x  ibv_wr_* instead of ibv_post_send\n"
	      "  -i  inline data\n"
	      "  -r  post also more than the queue takes\n"
	      "  -S  receives on a shared receive queue\n"
	      "  -c  ibv_start_poll instead of ibv_poll_cq, and reads only these parts of completions: o opcode, l length,\n"
	      "      q queue pair, - none; with + a pair with an ordinary CQ is connected before\n"
	      "  -f  one process after the other does all that, and exits; no figures\n"
	      "  -b  print the numbers of the first pair and wait for sends that the remote end has no buffers for, until SIGTERM;\n"
	      "      then set the first queue pair to the error state and hold\n"
	      "  -e  post one chain to a process that is killed before\n"
	      "  -a  destroys a queue pair before it is connected, waits for a line, and connects the pairs\n"
	      "  -u  sleep between chains, and end with SIGTERM\n"
	      "  -w  wait for a line on standard input before anything is posted\n"
	      "  -k  hold at the end, -p poll an empty CQ until SIGTERM\n", stderr);
	exit(2);
}

int main(int argc, char **argv)
{
	char *devices = NULL, *held = NULL;
	int n = 100, pairs = 1, refused = 0, keep = 0, polling = 0, waiting = 0, turns = 0, closing = 0, processes = 0, alone = 0, aborted = 0, pause_us = 0;
	int sockets[2], opt;
	pid_t child = 0;

	while ((opt = getopt(argc, argv, "d:H:o:n:l:s:g:q:f:c:u:tTxirawkpebSh")) != -1)
		switch (opt) {
		case 'd': devices = optarg; break;
		case 'H': held = optarg; break;
		case 't': turns = 1; break;
		case 'T': closing = 1; break;
		case 'o':
			for (op = ops; op->name && strcmp(op->name, optarg);)
				op++;
			if (!op->name)
				usage();
			break;
		case 'n': n = atoi(optarg); break;
		case 'l': chain = atoi(optarg); break;
		case 's': size = strtoul(optarg, NULL, 0); break;
		case 'g': sges = atoi(optarg); break;
		case 'q': pairs = atoi(optarg); break;
		case 'u': pause_us = atoi(optarg); break;
		case 'x': ex = 1; break;
		case 'c': parts = optarg; break;
		case 'i': inlined = 1; break;
		case 'r': refused = 1; break;
		case 'a': aborted = 1; break;
		case 'f': processes = atoi(optarg); break;
		case 'w': waiting = 1; break;
		case 'S': shared = 1; break;
		case 'k': keep = 1; break;
		case 'p': polling = 1; break;
		case 'e': alone = 1; break;
		case 'b': unreceived = 1; break;
		default: usage();
		}
	if (chain < 1 || chain > most || sges < 1 || sges > most || pairs < 1 || pairs > most)
		usage();
	for (int i = 0; i < processes; i++) {
		int status = 0;
		pid_t pid = fork();

		if (pid < 0)
			err(1, "fork");
		if (!pid) {
			if (!freopen("/dev/null", "w", stdout))
				err(1, "/dev/null");
			processes = 0;
			break;
		}
		if (waitpid(pid, &status, 0) != pid || status)
			errx(1, "process %d of %d: status %#x", i, processes, status);
	}
	if (processes) {
		printf("done\n");
		return 0;
	}
	if (alone) {
		retries = 2; // the default, 7, means infinite retries on Soft-RoCE
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) || (child = fork()) < 0)
			err(1, "socketpair, fork");
	}
	ud = !strcmp(op->name, "ud");
	struct end a[most], b[most];
	char *device = devices ? strtok(devices, ",") : NULL, *next;
	if (held) { // the objects of set_up and connect_pairs stay until the process ends
		set_up(held, 1);
		connect_pairs(a, b, 1);
	}
	if (turns && !wait_for_line("open"))
		return 0;
	set_up(device, pairs);
	if (alone) {
		die_alone(sockets[!child], child);
		return 0;
	}
	if (aborted) {
		abort_connection();
		if (!wait_for_line("aborted"))
			return 0;
	}
	if (parts && strchr(parts, '+'))
		connect_ordinary();
	connect_pairs(a, b, pairs);
	while ((next = device ? strtok(NULL, ",") : NULL)) {
		for (int i = 0; i < n; i++)
			post_all(a, b, pairs, i);
		if (closing && !wait_for_line("posted"))
			return 0;
		tear_down(a, b, pairs);
		if (turns && !wait_for_line("open"))
			return 0;
		set_up(next, pairs);
		connect_pairs(a, b, pairs);
	}
	if (unreceived) {
		printf("queue pairs %u %u\n", a[0].qp->qp_num, b[0].qp->qp_num);
		fflush(stdout);
		signal(SIGTERM, end);
		post_all(a, b, pairs, 0);
		change(a[0].qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, IBV_QP_STATE);
		ended = 0;
		hold();
		return 0;
	}
	if (waiting && !wait_for_line("waiting"))
		return 0;

	double *took = calloc(n + 1, sizeof *took);
	if (pause_us)
		signal(SIGTERM, end);
	for (int i = 0; i < n && !ended; i++) {
		double start = now(CLOCK_MONOTONIC);
		post_all(a, b, pairs, i);
		took[i] = now(CLOCK_MONOTONIC) - start;
		usleep(pause_us);
	}
	if (ex) {
		begin_chain(&a[0], &b[0], 1, 0);
		ibv_wr_abort(a[0].qpx);
	}
	if (refused) { // the provider refuses the last request, which is signaled
		usleep(100000); // rxe takes requests without a doorbell while it still works on earlier ones
		int taken = post_chain(&a[0], &b[0], 2 * depth, 0);
		if (taken == 2 * depth)
			errx(1, "a queue of %d took %d requests", depth, taken);
		posted += taken;
		posted_bytes += (uint64_t)taken * size;
		printf("refused %d\n", 2 * depth - taken);
	}
	qsort(took, n, sizeof *took, ascending);
	printf("posted %llu %llu\n", (unsigned long long)posted, (unsigned long long)posted_bytes);
	printf("receives %llu %llu %llu\n", (unsigned long long)receives, (unsigned long long)received,
	       (unsigned long long)received_bytes);
	printf("median %.9f\n", took[n / 2]);
	printf("done\n");
	fflush(stdout);
	signal(SIGTERM, end);
	if (polling)
		spin();
	if (keep)
		hold();
	return 0;
}
