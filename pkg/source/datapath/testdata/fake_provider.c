// SPDX-License-Identifier: Apache-2.0
/*
 * A FAKE verbs provider, because there is no HCA here, and a program that uses
 * it as libibverbs would: through the operations of its context and of its
 * queue pairs, in the layouts of the real <infiniband/verbs.h>. It moves
 * nothing; completions are made up. It executes the lines on its
 * standard input and says "done" after each.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The nop in front is what the kernel emulates. */
#define PROBED __attribute__((noinline, noipa, used, patchable_function_entry(1)))

/* Completions that are ready, in order; each thread has a completion queue. */
struct cq {
	union {
		struct ibv_cq cq;
		struct ibv_cq_ex ex;
	};
	struct ibv_wc wc[4096];
	unsigned head, tail;
};

/* offsetof(struct ibv_qp_ex, wr_flush), which headers before version 45 lack */
#define WR_FLUSH 352

typedef void wr_flush_function(struct ibv_qp_ex *, uint32_t rkey, uint64_t remote, size_t length, uint8_t type, uint8_t level);

struct qp {
	union {
		struct ibv_qp_ex ex;
		wr_flush_function *functions[WR_FLUSH / sizeof(void *) + 1];
	};
	struct cq *cq;
	int all, polls;
};

static int refuse = -1; /* which work request of a chain is refused */
static int silent;      /* the peer does not answer: work requests get no completion */
static int failing;     /* what wr_complete returns */
static char *kernel_memory;

static enum ibv_wc_opcode completion(enum ibv_wr_opcode op)
{
	switch (op) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_WC_FETCH_ADD;
	case IBV_WR_DRIVER1:
		return IBV_WC_DRIVER1;
	default:
		return IBV_WC_SEND;
	}
}

static void complete(struct cq *cq, struct ibv_wc wc)
{
	cq->wc[cq->tail++ % 4096] = wc;
}

PROBED int post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct qp *qp = (struct qp *)ibqp;

	/* As some do, to make room. */
	if (qp->polls) {
		struct ibv_wc wc;

		ibv_poll_cq(&qp->cq->cq, 1, &wc);
	}
	for (int i = 0; wr; wr = wr->next, i++) {
		if (i == refuse) {
			*bad = wr;
			return ENOMEM;
		}
		if ((unsigned long)wr < 4096)
			return 0;
		if (!silent && (qp->all || wr->send_flags & IBV_SEND_SIGNALED))
			complete(qp->cq, (struct ibv_wc){
						 .wr_id = wr->wr_id, .opcode = completion(wr->opcode), .qp_num = ibqp->qp_num});
		if (wr->next == wr)
			return 0;
	}
	return 0;
}

PROBED int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	for (int i = 0; wr; wr = wr->next, i++)
		if (i == refuse) {
			*bad = wr;
			return ENOMEM;
		}
	return 0;
}

PROBED int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	for (int i = 0; wr; wr = wr->next, i++)
		if (i == refuse) {
			*bad = wr;
			return ENOMEM;
		}
	return 0;
}

PROBED int poll_cq(struct ibv_cq *ibcq, int n, struct ibv_wc *wc)
{
	struct cq *cq = (struct cq *)ibcq;
	int i = 0;

	for (; i < n && cq->head != cq->tail; i++)
		wc[i] = cq->wc[cq->head++ % 4096];
	return i;
}

static int found(struct cq *cq)
{
	if (cq->head == cq->tail)
		return ENOENT;
	cq->ex.status = cq->wc[cq->head % 4096].status;
	cq->ex.wr_id = cq->wc[cq->head++ % 4096].wr_id;
	return 0;
}

static struct ibv_wc *last(struct ibv_cq_ex *ex)
{
	struct cq *cq = (struct cq *)ex;

	return &cq->wc[(cq->head - 1) % 4096];
}

PROBED int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	return found((struct cq *)ex);
}

PROBED int next_poll(struct ibv_cq_ex *ex)
{
	return found((struct cq *)ex);
}

PROBED void end_poll(struct ibv_cq_ex *ex)
{
	__asm__ volatile("");
}

PROBED enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *ex)
{
	return last(ex)->opcode;
}

PROBED uint32_t read_byte_len(struct ibv_cq_ex *ex)
{
	return last(ex)->byte_len;
}

PROBED uint32_t read_qp_num(struct ibv_cq_ex *ex)
{
	return last(ex)->qp_num;
}

static struct ibv_wc next[64];
static int started;

static void begin(struct ibv_qp_ex *ex, enum ibv_wc_opcode op)
{
	if (ex->wr_flags & IBV_SEND_SIGNALED)
		next[started++] = (struct ibv_wc){.wr_id = ex->wr_id, .opcode = op, .qp_num = ex->qp_base.qp_num};
}

PROBED void wr_start(struct ibv_qp_ex *ex)
{
	started = 0;
}

PROBED void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	begin(ex, IBV_WC_RDMA_WRITE);
}

PROBED void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	begin(ex, IBV_WC_RDMA_READ);
}

PROBED void wr_send(struct ibv_qp_ex *ex)
{
	begin(ex, IBV_WC_SEND);
}

PROBED void wr_send_tso(struct ibv_qp_ex *ex, void *hdr, uint16_t hdr_sz, uint16_t mss)
{
	begin(ex, IBV_WC_TSO);
}

PROBED void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	__asm__ volatile("");
}

PROBED void wr_set_sge_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *list)
{
	__asm__ volatile("");
}

PROBED void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	__asm__ volatile("");
}

PROBED void wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *list)
{
	__asm__ volatile("");
}

PROBED void wr_atomic_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote, const void *value)
{
	begin(ex, IBV_WC_RDMA_WRITE);
}

PROBED void wr_flush(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote, size_t length, uint8_t type, uint8_t level)
{
	begin(ex, IBV_WC_RDMA_READ);
}

PROBED int wr_complete(struct ibv_qp_ex *ex)
{
	struct qp *qp = (struct qp *)ex;

	if (failing)
		return failing;
	for (int i = 0; i < started; i++)
		complete(qp->cq, next[i]);
	return 0;
}

PROBED void wr_abort(struct ibv_qp_ex *ex)
{
	__asm__ volatile("");
}

static struct ibv_context context = {.ops = {.post_send = post_send, .post_recv = post_recv, .post_srq_recv = post_srq_recv,
						 .poll_cq = poll_cq}};
static struct ibv_srq srq = {.context = &context};

static struct qp *make(uint32_t qpn, enum ibv_qp_type type)
{
	struct qp *qp = calloc(1, sizeof(*qp));

	qp->cq = calloc(1, sizeof(*qp->cq));
	qp->cq->ex = (struct ibv_cq_ex){.context = &context, .start_poll = start_poll, .next_poll = next_poll,
					.end_poll = end_poll, .read_opcode = read_opcode,
					.read_byte_len = read_byte_len, .read_qp_num = read_qp_num};
	qp->ex.qp_base = (struct ibv_qp){.context = &context, .qp_num = qpn, .qp_type = type};
	qp->ex.wr_start = wr_start;
	qp->ex.wr_rdma_write = wr_rdma_write;
	qp->ex.wr_rdma_read = wr_rdma_read;
	qp->ex.wr_send = wr_send;
	qp->ex.wr_send_tso = wr_send_tso;
	qp->ex.wr_set_sge = wr_set_sge;
	qp->ex.wr_set_sge_list = wr_set_sge_list;
	qp->ex.wr_set_inline_data = wr_set_inline_data;
	qp->ex.wr_set_inline_data_list = wr_set_inline_data_list;
	qp->ex.wr_complete = wr_complete;
	qp->ex.wr_abort = wr_abort;
	qp->ex.wr_atomic_write = wr_atomic_write;
	qp->functions[WR_FLUSH / sizeof(void *)] = wr_flush;
	return qp;
}

/* WRITE 100+28, SEND 64 inline, READ 4096, CAS 8, LOCAL_INV (with junk for a list), TSO 54+1000. */
static int chain(struct qp *qp)
{
	struct ibv_sge two[2] = {{.length = 100}, {.length = 28}}, one = {.length = 64}, big = {.length = 4096},
		       atomic = {.length = 8}, payload = {.length = 1000};
	struct ibv_send_wr tso = {.sg_list = &payload, .num_sge = 1, .opcode = IBV_WR_TSO, .tso = {.hdr_sz = 54}};
	struct ibv_send_wr inv = {
		.next = &tso, .sg_list = (void *)8, .num_sge = 3, .opcode = IBV_WR_LOCAL_INV};
	struct ibv_send_wr cas = {
		.next = &inv, .sg_list = &atomic, .num_sge = 1, .opcode = IBV_WR_ATOMIC_CMP_AND_SWP};
	struct ibv_send_wr read = {.next = &cas, .sg_list = &big, .num_sge = 1, .opcode = IBV_WR_RDMA_READ};
	struct ibv_send_wr send = {
		.next = &read, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE};
	struct ibv_send_wr write = {.next = &send, .sg_list = two, .num_sge = 2, .opcode = IBV_WR_RDMA_WRITE};
	struct ibv_send_wr *bad;

	return ibv_post_send(&qp->ex.qp_base, &write, &bad);
}

/* A signaled work request, polled so many microseconds later. */
static void timed(struct qp *qp, uint64_t id, enum ibv_wr_opcode op, int flags, int us)
{
	struct ibv_send_wr wr = {.wr_id = id, .opcode = op, .send_flags = flags}, *bad;
	struct ibv_wc wc;

	ibv_post_send(&qp->ex.qp_base, &wr, &bad);
	usleep(us);
	while (ibv_poll_cq(&qp->cq->cq, 1, &wc) == 1)
		;
}

/* What is read of each completion, in the order of the bits. */
enum { opcode = 1, byte_len = 2, qp_num = 4, opcode_again = 8 };

static void poll_ex(struct cq *cq, int reads)
{
	struct ibv_poll_cq_attr attr = {};

	if (ibv_start_poll(&cq->ex, &attr))
		return;
	do {
		if (reads & opcode)
			ibv_wc_read_opcode(&cq->ex);
		for (int i = 0; i < 2 && reads & byte_len; i++)
			ibv_wc_read_byte_len(&cq->ex);
		if (reads & qp_num)
			ibv_wc_read_qp_num(&cq->ex);
		if (reads & opcode_again)
			ibv_wc_read_opcode(&cq->ex);
	} while (!ibv_next_poll(&cq->ex));
	ibv_end_poll(&cq->ex);
}

static void post_receives(struct qp *qp, int n)
{
	struct ibv_recv_wr wr = {}, *bad;

	while (n--)
		ibv_post_recv(&qp->ex.qp_base, &wr, &bad);
}

/* A receive completes and is polled, with ibv_start_poll if it is to be read. */
static void received(struct qp *qp, enum ibv_wc_opcode opcode, int reads)
{
	struct ibv_wc wc;

	complete(qp->cq, (struct ibv_wc){.opcode = opcode, .byte_len = 10, .qp_num = 17});
	if (reads)
		poll_ex(qp->cq, reads);
	else
		ibv_poll_cq(&qp->cq->cq, 1, &wc);
}

static long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000 + t.tv_nsec;
}

/* A receive that completes so many microseconds later. Prints the least and the longest time that the wait can have taken. */
static void await(struct qp *qp, int us, enum ibv_wc_opcode opcode, int reads)
{
	long before = now_ns(), posted, polled;

	post_receives(qp, 1);
	posted = now_ns();
	usleep(us);
	polled = now_ns();
	received(qp, opcode, reads);
	printf("%ld %ld ", polled - posted, now_ns() - before);
}

/* A signaled write, polled so many microseconds later. */
static void timed_ex(struct qp *qp, uint64_t id, int us, int reads)
{
	struct ibv_send_wr wr = {.wr_id = id, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;

	ibv_post_send(&qp->ex.qp_base, &wr, &bad);
	usleep(us);
	poll_ex(qp->cq, reads);
}

static void *busy_ex(void *arg)
{
	struct qp *qp = arg;

	for (int i = 0; i < 2000; i++) {
		poll_ex(qp->cq, 7);
		complete(qp->cq, (struct ibv_wc){.opcode = IBV_WC_RECV, .byte_len = 10, .qp_num = 17});
		complete(qp->cq, (struct ibv_wc){.opcode = IBV_WC_RECV, .byte_len = 300, .qp_num = 17});
		poll_ex(qp->cq, 7);
	}
	return NULL;
}

static void *busy(void *arg)
{
	struct qp *qp = arg;
	struct ibv_wc wc[8];

	for (int i = 0; i < 5000; i++) {
		struct ibv_sge sge = {.length = 10};
		struct ibv_send_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED}, *bad;

		ibv_post_send(&qp->ex.qp_base, &wr, &bad);
		ibv_poll_cq(&qp->cq->cq, 8, wc);
		ibv_poll_cq(&qp->cq->cq, 8, wc);
	}
	return NULL;
}

/*
 * A job: n processes with 10 verbs contexts each, which the kernel ends with this one. It prints the addresses of the contexts
 * and their queue pairs, and the numbers of the processes.
 */
static struct {
	struct ibv_context contexts[10];
	struct qp *qps[10];
	pid_t *pids;
	int n, *posted; /* shared */
} job;

static void run_job(int n)
{
	sigset_t posts;

	sigemptyset(&posts);
	sigaddset(&posts, SIGUSR1);
	sigprocmask(SIG_BLOCK, &posts, NULL);
	job.posted = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	job.pids = calloc(n, sizeof(pid_t));
	for (int i = 0; i < 10; i++) {
		job.contexts[i] = context;
		job.qps[i] = make(17, IBV_QPT_RC);
		job.qps[i]->ex.qp_base.context = &job.contexts[i];
		printf("%p %p ", (void *)&job.contexts[i], (void *)job.qps[i]);
	}
	fflush(stdout);
	for (job.n = 0; job.n < n; job.n++) {
		int got;

		job.pids[job.n] = fork();
		if (job.pids[job.n] > 0) {
			printf("%d ", job.pids[job.n]);
			continue;
		}
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		while (job.pids[job.n] == 0 && !sigwait(&posts, &got)) {
			for (int i = 0; i < 10; i++)
				chain(job.qps[i]);
			__atomic_add_fetch(job.posted, 1, __ATOMIC_SEQ_CST);
		}
		_exit(1);
	}
}

/* Each process of the job posts a chain on each queue pair. */
static void post_job(void)
{
	*job.posted = 0;
	for (int i = 0; i < job.n; i++)
		kill(job.pids[i], SIGUSR1);
	while (__atomic_load_n(job.posted, __ATOMIC_SEQ_CST) < job.n)
		usleep(1000);
}

static void end_job(void)
{
	for (int i = 0; i < job.n; i++)
		kill(job.pids[i], SIGKILL);
	for (int i = 0; i < job.n; i++)
		waitpid(job.pids[i], NULL, 0);
}

/* Called in the place of the kernel's functions, with objects in its memory. */
PROBED void ib_modify_qp_with_udata(void *qp, void *attr, int mask, void *udata)
{
	__asm__ volatile("");
}

PROBED void ib_destroy_qp_user(void *qp, void *udata)
{
	__asm__ volatile("");
}

PROBED void rdma_restrack_add(void *entry)
{
	__asm__ volatile("");
}

PROBED void rdma_restrack_del(void *entry)
{
	__asm__ volatile("");
}

static void obey(char *what, struct qp *qp, struct qp *ud, long n)
{
	struct ibv_qp_ex *ex = &qp->ex;
	struct ibv_wc wc[64];

	if (!strcmp(what, "chain")) {
		while (n--)
			chain(qp);
	} else if (!strcmp(what, "refused")) {
		refuse = n;
		chain(qp);
		refuse = -1;
	} else if (!strcmp(what, "recv") || !strcmp(what, "recv-refused")) {
		struct ibv_recv_wr last = {}, middle = {.next = &last}, first = {.next = &middle}, *bad;

		refuse = strcmp(what, "recv") ? 2 : -1;
		while (n--)
			ibv_post_recv(&qp->ex.qp_base, &first, &bad);
		refuse = -1;
	} else if (!strcmp(what, "post-receives")) {
		post_receives(qp, n);
	} else if (!strcmp(what, "receive")) {
		while (n--)
			received(qp, IBV_WC_RECV, 0);
	} else if (!strcmp(what, "receive-ex")) {
		received(qp, IBV_WC_RECV, n);
	} else if (!strcmp(what, "await")) {
		await(qp, n, IBV_WC_RECV, 0);
	} else if (!strcmp(what, "await-write")) {
		await(qp, n, IBV_WC_RECV_RDMA_WITH_IMM, 0);
	} else if (!strcmp(what, "await-ex")) {
		await(qp, n, IBV_WC_RECV, 7);
	} else if (!strcmp(what, "srq")) {
		struct ibv_recv_wr last = {}, first = {.next = &last}, *bad;

		while (n--)
			ibv_post_srq_recv(&srq, &first, &bad);
	} else if (!strcmp(what, "ex-atomic-write")) {
		ibv_wr_start(ex);
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_atomic_write(ex, 0, 0, wc);
		ibv_wr_complete(ex);
		qp->cq->head = qp->cq->tail;
	} else if (!strcmp(what, "ex-flush")) {
		ibv_wr_start(ex);
		ex->wr_flags = IBV_SEND_SIGNALED;
		qp->functions[WR_FLUSH / sizeof(void *)](ex, 0, 0, 100, 0, 0);
		ibv_wr_complete(ex);
		qp->cq->head = qp->cq->tail;
	} else if (!strcmp(what, "polled")) {
		struct ibv_recv_wr wr = {}, *bad;

		/* 20 polls that find nothing, then all at once */
		for (int i = 0; i < 20; i++)
			ibv_poll_cq(&qp->cq->cq, 64, wc);
		ibv_post_recv(&ud->ex.qp_base, &wr, &bad);
		complete(qp->cq, (struct ibv_wc){.opcode = IBV_WC_RECV, .byte_len = 1000, .qp_num = 17});
		complete(qp->cq, (struct ibv_wc){.opcode = IBV_WC_RECV_RDMA_WITH_IMM, .byte_len = 500, .qp_num = 17});
		complete(qp->cq, (struct ibv_wc){
					 .opcode = IBV_WC_RECV, .byte_len = 140, .qp_num = 18, .wc_flags = IBV_WC_GRH});
		complete(qp->cq, (struct ibv_wc){
					 .opcode = IBV_WC_RECV, .byte_len = 140, .qp_num = 17, .wc_flags = IBV_WC_GRH});
		/* a datagram on native InfiniBand without a GRH: its space is counted in byte_len */
		complete(qp->cq, (struct ibv_wc){.opcode = IBV_WC_RECV, .byte_len = 240, .qp_num = 18});
		complete(qp->cq, (struct ibv_wc){.status = IBV_WC_RETRY_EXC_ERR, .opcode = 128, .byte_len = 7, .qp_num = 17});
		complete(qp->cq, (struct ibv_wc){.status = 77, .qp_num = 17});
		ibv_poll_cq(&qp->cq->cq, 64, wc);
	} else if (!strcmp(what, "poll-ex")) {
		for (int i = 0; i < 20; i++)
			poll_ex(qp->cq, n);
		complete(qp->cq, (struct ibv_wc){.opcode = IBV_WC_RECV, .byte_len = 1000, .qp_num = 17});
		complete(qp->cq, (struct ibv_wc){.opcode = IBV_WC_SEND, .byte_len = 77, .qp_num = 17});
		complete(qp->cq, (struct ibv_wc){.opcode = IBV_WC_RECV_RDMA_WITH_IMM, .byte_len = 500, .qp_num = 17});
		complete(qp->cq, (struct ibv_wc){.opcode = IBV_WC_TM_ADD, .byte_len = 3, .qp_num = 17});
		complete(qp->cq, (struct ibv_wc){.status = IBV_WC_RETRY_EXC_ERR, .opcode = 128, .byte_len = 7, .qp_num = 17});
		complete(qp->cq, (struct ibv_wc){.status = 77, .opcode = 128, .qp_num = 17});
		complete(qp->cq, (struct ibv_wc){.opcode = IBV_WC_RECV, .byte_len = 140, .qp_num = 18});
		poll_ex(qp->cq, n);
	} else if (!strcmp(what, "leave-ex")) {
		struct ibv_poll_cq_attr attr = {};

		complete(qp->cq, (struct ibv_wc){.opcode = IBV_WC_RECV, .byte_len = 1000, .qp_num = 17});
		ibv_start_poll(&qp->cq->ex, &attr);
		ibv_end_poll(&qp->cq->ex);
	} else if (!strcmp(what, "recv-ordinary")) {
		complete(qp->cq, (struct ibv_wc){.opcode = IBV_WC_RECV, .byte_len = 11, .qp_num = 17});
		ibv_poll_cq(&qp->cq->cq, 64, wc);
	} else if (!strcmp(what, "datagrams")) {
		struct ibv_recv_wr wr = {}, *bad;

		ibv_post_recv(&ud->ex.qp_base, &wr, &bad);
	} else if (!strcmp(what, "distinct-ex")) {
		for (int i = 0; i < 20; i++)
			timed_ex(qp, i, 2000, n);
	} else if (!strcmp(what, "same-ex")) {
		timed_ex(qp, 7, 2000, n);
	} else if (!strcmp(what, "threads-ex")) {
		pthread_t t[4];

		for (int i = 0; i < 4; i++)
			pthread_create(&t[i], NULL, busy_ex, make(30 + i, IBV_QPT_RC));
		for (int i = 0; i < 4; i++)
			pthread_join(t[i], NULL);
	} else if (!strcmp(what, "two-ex")) {
		/* The completions of two queues in turn: each is read after the other one was polled. */
		struct qp *other = make(40, IBV_QPT_RC);
		struct ibv_poll_cq_attr attr = {};

		complete(qp->cq, (struct ibv_wc){.opcode = IBV_WC_RECV, .byte_len = 1000, .qp_num = 17});
		complete(other->cq, (struct ibv_wc){.opcode = IBV_WC_RECV, .byte_len = 20, .qp_num = 40});
		ibv_start_poll(&qp->cq->ex, &attr);
		ibv_start_poll(&other->cq->ex, &attr);
		ibv_wc_read_opcode(&qp->cq->ex);
		ibv_wc_read_byte_len(&qp->cq->ex);
		ibv_wc_read_opcode(&other->cq->ex);
		ibv_wc_read_byte_len(&other->cq->ex);
		ibv_end_poll(&other->cq->ex);
		ibv_end_poll(&qp->cq->ex);
	} else if (!strcmp(what, "idle-ex")) {
		struct timespec a, b;

		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
		for (int i = 0; i < n; i++)
			poll_ex(qp->cq, 7);
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
		printf("%.0f ", ((b.tv_sec - a.tv_sec) * 1e9 + b.tv_nsec - a.tv_nsec) / n);
	} else if (!strcmp(what, "received-ex")) {
		struct timespec a, b;

		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
		for (int i = 0; i < n; i++) {
			complete(qp->cq, (struct ibv_wc){.opcode = IBV_WC_RECV, .byte_len = 10, .qp_num = 17});
			poll_ex(qp->cq, 7);
		}
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
		printf("%.0f ", ((b.tv_sec - a.tv_sec) * 1e9 + b.tv_nsec - a.tv_nsec) / n);
	} else if (!strcmp(what, "ex")) {
		struct ibv_sge list[3] = {{.length = 1}, {.length = 20}, {.length = 300}};
		struct ibv_data_buf bufs[2] = {{.length = 5}, {.length = 60}};
		struct qp *other = make(99, IBV_QPT_RC);

		failing = n;
		ibv_wr_start(ex);
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(ex, 0, 0);
		ibv_wr_set_sge_list(ex, 3, list);
		/* another one in the middle of it */
		ibv_wr_start(&other->ex);
		ibv_wr_send(ex);
		ibv_wr_set_inline_data(ex, wc, 33);
		ibv_wr_send(&other->ex);
		ibv_wr_set_sge(&other->ex, 0, 0, 1000);
		ibv_wr_send(ex);
		ibv_wr_set_inline_data_list(ex, 2, bufs);
		ibv_wr_rdma_read(ex, 0, 0);
		ibv_wr_set_sge(ex, 0, 0, 4000);
		ibv_wr_send_tso(ex, wc, 54, 1);
		ibv_wr_set_sge(ex, 0, 0, 100);
		ibv_wr_abort(&other->ex);
		ibv_wr_complete(ex);
		failing = 0;
		qp->cq->head = qp->cq->tail;
	} else if (!strcmp(what, "same")) {
		while (n--)
			timed(qp, 7, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 2000);
	} else if (!strcmp(what, "driver")) {
		while (n--)
			timed(qp, 7, IBV_WR_DRIVER1, IBV_SEND_SIGNALED, 0);
	} else if (!strcmp(what, "ex-driver")) {
		/* As mlx5dv_wr_raw_wqe: no function of struct ibv_qp_ex builds the work request. */
		while (n--) {
			ibv_wr_start(ex);
			ibv_wr_complete(ex);
			complete(qp->cq, (struct ibv_wc){.wr_id = 7, .opcode = IBV_WC_DRIVER2, .qp_num = 17});
			ibv_poll_cq(&qp->cq->cq, 1, wc);
		}
	} else if (!strcmp(what, "distinct")) {
		for (int i = 0; i < n; i++)
			timed(qp, i, IBV_WR_SEND, IBV_SEND_SIGNALED, 2000);
	} else if (!strcmp(what, "silent")) {
		silent = 1;
		for (int i = 0; i < n; i++)
			timed(qp, 1000 + i, IBV_WR_SEND, IBV_SEND_SIGNALED, 0);
		silent = 0;
	} else if (!strcmp(what, "silent-one")) {
		silent = 1;
		timed(qp, 1000 + n, IBV_WR_SEND, IBV_SEND_SIGNALED, 0);
		silent = 0;
	} else if (!strcmp(what, "answer") || !strcmp(what, "fail")) {
		/* the work request of "silent" with this number completes */
		complete(qp->cq, (struct ibv_wc){.wr_id = 1000 + n, .opcode = IBV_WC_SEND, .qp_num = 17,
						 .status = strcmp(what, "fail") ? IBV_WC_SUCCESS : IBV_WC_RETRY_EXC_ERR});
		ibv_poll_cq(&qp->cq->cq, 64, wc);
	} else if (!strcmp(what, "retried")) {
		/* refused, then accepted: only one is posted */
		while (n--) {
			struct ibv_send_wr wr = {.wr_id = 7, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED}, *bad;

			refuse = 0;
			ibv_post_send(&qp->ex.qp_base, &wr, &bad);
			refuse = -1;
			timed(qp, 7, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 2000);
		}
	} else if (!strcmp(what, "all")) {
		qp->all = 1;
		while (n--)
			timed(qp, 7, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 2000);
		qp->all = 0;
	} else if (!strcmp(what, "deep")) {
		/* more than a ring holds, completed in order */
		for (int i = 0; i < 2 * n; i++) {
			struct ibv_send_wr wr = {.wr_id = 7, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;

			ibv_post_send(&qp->ex.qp_base, &wr, &bad);
			if (i >= n)
				ibv_poll_cq(&qp->cq->cq, 1, wc);
		}
		while (ibv_poll_cq(&qp->cq->cq, 64, wc))
			;
	} else if (!strcmp(what, "nested")) {
		complete(qp->cq, (struct ibv_wc){.opcode = IBV_WC_RECV, .byte_len = 11, .qp_num = 17});
		qp->polls = 1;
		chain(qp);
		qp->polls = 0;
	} else if (!strcmp(what, "threads")) {
		pthread_t t[4];

		for (int i = 0; i < 4; i++)
			pthread_create(&t[i], NULL, busy, make(30 + i, IBV_QPT_RC));
		for (int i = 0; i < 4; i++)
			pthread_join(t[i], NULL);
	} else if (!strcmp(what, "fork")) {
		if (!fork()) {
			chain(qp);
			_exit(0);
		}
		wait(NULL);
	} else if (!strcmp(what, "exec")) {
		/* The next program has the same addresses as the one after it. */
		personality(ADDR_NO_RANDOMIZE);
		execl("/proc/self/exe", "provider", NULL);
	} else if (!strcmp(what, "kernel-memory")) {
		kernel_memory = (char *)n;
	} else if (!strcmp(what, "modify-qp")) {
		ib_modify_qp_with_udata(kernel_memory + n, kernel_memory, 1 /* IB_QP_STATE */, NULL);
	} else if (!strcmp(what, "make-qp")) {
		printf("%p ", (void *)make(n, IBV_QPT_RC));
	} else if (!strcmp(what, "free-qp")) {
		free((void *)n);
	} else if (!strcmp(what, "destroy-qp")) {
		ib_destroy_qp_user(kernel_memory + n, NULL);
	} else if (!strcmp(what, "open-context")) {
		rdma_restrack_add(kernel_memory + n);
	} else if (!strcmp(what, "close-context")) {
		rdma_restrack_del(kernel_memory + n);
	} else if (!strcmp(what, "job")) {
		run_job(n);
	} else if (!strcmp(what, "job-posts")) {
		post_job();
	} else if (!strcmp(what, "job-ends")) {
		end_job();
	} else if (!strcmp(what, "cycle")) {
		struct ibv_send_wr wr = {.opcode = IBV_WR_SEND}, *bad;

		wr.next = &wr;
		ibv_post_send(&qp->ex.qp_base, &wr, &bad);
	} else if (!strcmp(what, "unreadable")) {
		struct ibv_send_wr *bad;

		ibv_post_send(&qp->ex.qp_base, (void *)64, &bad);
	} else if (!strcmp(what, "idle")) {
		struct timespec a, b;

		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
		for (int i = 0; i < n; i++)
			ibv_poll_cq(&qp->cq->cq, 8, wc);
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
		printf("%.0f ", ((b.tv_sec - a.tv_sec) * 1e9 + b.tv_nsec - a.tv_nsec) / n);
	} else if (!strcmp(what, "receives")) {
		struct timespec a, b;

		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
		for (int i = 0; i < n; i++) {
			post_receives(qp, 1);
			received(qp, IBV_WC_RECV, 0);
		}
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
		printf("%.0f ", ((b.tv_sec - a.tv_sec) * 1e9 + b.tv_nsec - a.tv_nsec) / n);
	} else if (!strcmp(what, "posts")) {
		struct timespec a, b;

		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
		for (int i = 0; i < n; i++) {
			struct ibv_sge sge = {.length = 10};
			struct ibv_send_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;

			ibv_post_send(&qp->ex.qp_base, &wr, &bad);
		}
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
		printf("%.0f ", ((b.tv_sec - a.tv_sec) * 1e9 + b.tv_nsec - a.tv_nsec) / n);
	}
}

int main(void)
{
	struct qp *qp = make(17, IBV_QPT_RC), *ud = make(18, IBV_QPT_UD);
	char what[32];
	long n;

	printf("%p %p\n", (void *)&context, (void *)qp);
	fflush(stdout);
	while (scanf("%31s %ld", what, &n) == 2) {
		obey(what, qp, ud, n);
		puts("done");
		fflush(stdout);
	}
	return 0;
}
