// SPDX-License-Identifier: Apache-2.0

// Makes verbs structures whose operations are functions of a real provider, and
// such as a hostile container could make. usage: qp PROVIDER OFFSET...
// The offsets are those of post_send, post_recv, poll_cq, wr_start, wr_complete,
// wr_abort, wr_set_sge, wr_rdma_write. It prints a name and an address per QP,
// and waits for the end of its input.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static unsigned long base, offsets[8];

static void *fn(int i)
{
	return (void *)(base + offsets[i]);
}

static struct ibv_context *context(void *post_send)
{
	struct ibv_context *c = calloc(1, sizeof *c);

	c->cmd_fd = -1;
	c->ops.post_send = post_send;
	c->ops.post_recv = fn(1);
	c->ops.poll_cq = fn(2);
	return c;
}

static void say(const char *name, const void *qp)
{
	printf("%s %lx\n", name, (unsigned long)qp);
}

// A QP that is just that, and ends where what can be read ends.
static struct ibv_qp *plain(struct ibv_context *c)
{
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_qp *qp = (void *)(pages + 4096 - sizeof *qp);

	mprotect(pages + 4096, 4096, PROT_NONE);
	qp->context = c;
	qp->qp_num = 17;
	return qp;
}

static struct ibv_qp_ex *extended(struct ibv_context *c)
{
	struct ibv_qp_ex *qp = calloc(1, sizeof *qp);

	qp->qp_base.context = c;
	qp->wr_start = fn(3);
	qp->wr_complete = fn(4);
	qp->wr_abort = fn(5);
	qp->wr_set_sge = fn(6);
	qp->wr_rdma_write = fn(7);
	return qp;
}

// A completion queue with functions for some parts.
static struct ibv_cq *extended_cq(struct ibv_context *c)
{
	struct ibv_cq_ex *cq = calloc(1, sizeof *cq);

	cq->context = c;
	cq->start_poll = fn(3);
	cq->next_poll = fn(4);
	cq->end_poll = fn(5);
	cq->read_vendor_err = fn(0);
	return ibv_cq_ex_to_cq(cq);
}

// A QP with completion queues.
static struct ibv_qp *polled(struct ibv_context *c, struct ibv_cq *sends, struct ibv_cq *receives)
{
	struct ibv_qp *qp = plain(c);

	qp->send_cq = sends;
	qp->recv_cq = receives;
	return qp;
}

int main(int argc, char **argv)
{
	struct link_map *map;
	void *handle = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
	char *code, *zeros;

	if (!handle || dlinfo(handle, RTLD_DI_LINKMAP, &map)) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	base = map->l_addr;
	for (int i = 0; i < 8 && i + 2 < argc; i++)
		offsets[i] = strtoul(argv[i + 2], NULL, 0);
	printf("base %lx\n", base);
	if (argc > 2) {
		struct ibv_qp_ex *half = extended(context(fn(0)));
		struct ibv_context *unaligned = (void *)((char *)context(fn(0)) + 1);

		half->wr_abort = (void *)getpid;
		code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		memcpy(code, "\x55\xc3", 2);
		zeros = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct ibv_context *of_cqs = context(fn(0));
		struct ibv_cq *sends = extended_cq(of_cqs), *receives = extended_cq(of_cqs), *half_cq = extended_cq(of_cqs),
			      *elsewhere = extended_cq(of_cqs);

		((struct ibv_cq_ex *)sends)->read_byte_len = fn(6);
		((struct ibv_cq_ex *)receives)->read_opcode = fn(5);
		((struct ibv_cq_ex *)receives)->read_qp_num = fn(7);
		((struct ibv_cq_ex *)half_cq)->next_poll = NULL;
		((struct ibv_cq_ex *)elsewhere)->start_poll = (void *)getpid;
		say("polled", polled(of_cqs, sends, sends));
		say("polled-twice", polled(of_cqs, sends, receives));
		say("half-polled", polled(of_cqs, half_cq, NULL));
		say("polled-elsewhere", polled(of_cqs, elsewhere, elsewhere));
		say("foreign-polled", polled(context(fn(0)), sends, receives));
		say("bad-polled", polled(of_cqs, (void *)zeros, (void *)((char *)sends + 4)));
		say("plain", plain(context(fn(0))));
		say("extended", extended(context(fn(0))));
		say("half", half);
		say("libc", plain(context((void *)getpid)));
		say("libibverbs", plain(context((void *)ibv_open_device)));
		say("anonymous", plain(context(code)));
		say("data", plain(context(&base)));
		say("middle", plain(context((char *)fn(0) + 1)));
		say("nowhere", plain(context((void *)0x123456)));
		say("far", plain(context((void *)-8L)));
		say("empty", plain(NULL));
		say("unfilled", plain(context(NULL)));
		say("badcontext", plain((void *)zeros));
		say("unaligned", plain(unaligned));
		say("badqp", zeros);
		say("oddqp", (char *)plain(context(fn(0))) + 4);
	}
	say("end", NULL);
	fflush(stdout);
	getchar();
	return 0;
}
