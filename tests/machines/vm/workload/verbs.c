// SPDX-License-Identifier: Apache-2.0
// verbs makes objects on one device, prints what it made and holds it until SIGTERM or the end of standard input.

#include "workload.h"

enum { MOST = 16384 };

static struct ibv_pd *pds[MOST];
static struct ibv_cq *cqs[MOST];
static struct ibv_qp *qps[MOST];
static struct ibv_srq *srqs[MOST];
static struct ibv_mr *mrs[MOST];
static struct ibv_mw *mws[MOST];
static struct ibv_ah *ahs[MOST];
static int npd, ncq, nqp, nsrq, nmr, nmw, nah;
static size_t sizes[MOST];

static int number(const char *s)
{
	long n = strtol(s, NULL, 0);

	if (n < 0 || n > MOST)
		errx(2, "%s: want 0 to %d", s, MOST);
	return n;
}

// destroy destroys all objects, and fails if the kernel refuses one.
static void destroy(struct ibv_context *context)
{
	int e = 0;

	for (int i = 0; i < nah; i++)
		e |= ibv_destroy_ah(ahs[i]);
	for (int i = 0; i < nmw; i++)
		e |= ibv_dealloc_mw(mws[i]);
	for (int i = 0; i < nqp; i++)
		e |= ibv_destroy_qp(qps[i]);
	for (int i = 0; i < nsrq; i++)
		e |= ibv_destroy_srq(srqs[i]);
	for (int i = 0; i < nmr; i++)
		e |= ibv_dereg_mr(mrs[i]);
	for (int i = 0; i < ncq; i++)
		e |= ibv_destroy_cq(cqs[i]);
	for (int i = 0; i < npd; i++)
		e |= ibv_dealloc_pd(pds[i]);
	if (e || ibv_close_device(context))
		errx(1, "destroy failed");
}

static const char usage[] =
	"usage: verbs [-d DEVICE] [-p PDS] [-c CQS] [-q QPS] [-x SRQS] [-m BYTES]... [-w MWS] [-a AHS] [-C] [-o]\n"
	"  -m  makes a memory region of that many bytes (repeatable)\n"
	"  -C  connects every QP, to itself\n"
	"  -o  destroys what it made, in order; else process exit does\n"
	"  -g  GID index for -a and -C (default 1)\n";

int main(int argc, char **argv)
{
	const char *device = NULL;
	int opt, connected = 0, ordered = 0, index = 1;
	size_t bytes = 0;

	npd = 1;
	while ((opt = getopt(argc, argv, "d:p:c:q:x:m:w:a:g:Coh")) != -1)
		switch (opt) {
		case 'd': device = optarg; break;
		case 'p': npd = number(optarg); break;
		case 'c': ncq = number(optarg); break;
		case 'q': nqp = number(optarg); break;
		case 'x': nsrq = number(optarg); break;
		case 'w': nmw = number(optarg); break;
		case 'a': nah = number(optarg); break;
		case 'g': index = number(optarg); break;
		case 'C': connected = 1; break;
		case 'o': ordered = 1; break;
		case 'm':
			if (nmr == MOST)
				errx(2, "too many -m");
			sizes[nmr++] = strtoull(optarg, NULL, 0);
			break;
		default: fputs(usage, stderr); return 2;
		}
	if (nqp && !ncq)
		ncq = 1;
	if (!npd && (nqp || nmr || nmw || nah || nsrq))
		npd = 1;

	struct ibv_context *context = open_device(device);
	union ibv_gid gid;

	if ((nah || connected) && ibv_query_gid(context, 1, index, &gid))
		err(1, "query_gid %d", index);
	for (int i = 0; i < npd; i++)
		if (!(pds[i] = ibv_alloc_pd(context)))
			err(1, "alloc_pd");
	for (int i = 0; i < ncq; i++)
		if (!(cqs[i] = ibv_create_cq(context, 16, NULL, NULL, 0)))
			err(1, "create_cq");
	for (int i = 0; i < nmr; i++) {
		mrs[i] = register_pages(pds[i % npd], sizes[i]);
		bytes += sizes[i];
	}
	for (int i = 0; i < nsrq; i++) {
		struct ibv_srq_init_attr attr = {.attr = {.max_wr = 16, .max_sge = 1}};
		if (!(srqs[i] = ibv_create_srq(pds[i % npd], &attr)))
			err(1, "create_srq");
	}
	for (int i = 0; i < nqp; i++)
		qps[i] = create_qp(pds[i % npd], cqs[i % ncq]);
	for (int i = 0; i < nmw; i++)
		if (!(mws[i] = ibv_alloc_mw(pds[i % npd], IBV_MW_TYPE_1)))
			err(1, "alloc_mw");
	for (int i = 0; i < nah; i++) {
		struct ibv_ah_attr attr = to_itself(gid, index);
		if (!(ahs[i] = ibv_create_ah(pds[i % npd], &attr)))
			err(1, "create_ah");
	}
	for (int i = 0; connected && i < nqp; i++)
		connect_qp(qps[i], gid, index);

	printf("device %s pd %d cq %d qp %d srq %d mr %d bytes %zu mw %d ah %d\n",
	       ibv_get_device_name(context->device), npd, ncq, nqp, nsrq, nmr, bytes, nmw, nah);
	for (int i = 0; i < nqp; i++)
		printf("qpn %u\n", qps[i]->qp_num);
	hold();
	if (ordered)
		destroy(context);
	return 0;
}
