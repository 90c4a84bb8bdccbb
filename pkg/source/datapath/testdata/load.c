// SPDX-License-Identifier: Apache-2.0
/*
 * A FAKE verbs provider and a program that posts work requests to it at a rate and
 * counts them. It moves nothing. It executes the lines on its standard input and says
 * "done" after each: a pattern with its mean rate per second starts the load, and
 * "posted" prints the number of work requests.
 */
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PROBED __attribute__((noinline, noipa, used, patchable_function_entry(1)))

PROBED int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return 0;
}

PROBED int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	return 0;
}

static struct ibv_context context = {.ops = {.post_send = post_send, .poll_cq = poll_cq}};
static struct ibv_qp qp = {.context = &context, .qp_num = 17, .qp_type = IBV_QPT_RC};
static struct ibv_cq cq = {.context = &context};

static atomic_ullong posted;
static atomic_int percent; /* of a CPU that the process takes in addition to its posts; 100: it polls all the time */
static double rate;
static double (*pattern)(double at);

static double steady(double at)
{
	return 1;
}

/* One second in four. The process takes CPU time only then. */
static double bursty(double at)
{
	return (long)at % 4 ? 0 : 4;
}

/* From 0 to twice the mean within 20 s, again and again. */
static double ramp(double at)
{
	return (at - (long)(at / 20) * 20) / 10;
}

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void post(void)
{
	struct ibv_sge sge = {.length = 10};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;

	ibv_post_send(&qp, &wr, &bad);
	atomic_fetch_add_explicit(&posted, 1, memory_order_relaxed);
}

/* Each millisecond it posts what is due, works or polls, and sleeps. */
static void *run(void *arg)
{
	const struct timespec tick = {.tv_nsec = 1000000};
	double began = now(CLOCK_MONOTONIC), last = began, due = 0;
	struct ibv_wc wc;

	for (;;) {
		double at = now(CLOCK_MONOTONIC), share = pattern(at - began), until;

		for (due += rate * share * (at - last); due >= 1; due--)
			post();
		last = at;
		ibv_poll_cq(&cq, 1, &wc);
		if (percent == 100 && share > 0) {
			while (now(CLOCK_MONOTONIC) < at + 1e-3)
				ibv_poll_cq(&cq, 1, &wc);
			continue;
		}
		until = now(CLOCK_THREAD_CPUTIME_ID) + (share > 0 ? percent * 1e-5 : 0);
		while (now(CLOCK_THREAD_CPUTIME_ID) < until)
			;
		nanosleep(&tick, NULL);
	}
	return arg;
}

int main(void)
{
	char what[32];
	pthread_t t;
	int n;

	printf("%p %p\n", (void *)&context, (void *)&qp);
	fflush(stdout);
	while (scanf("%31s %d", what, &n) == 2) {
		if (!strcmp(what, "posted")) {
			printf("%llu ", (unsigned long long)posted);
		} else if (!strcmp(what, "percent")) {
			percent = n;
		} else {
			rate = n;
			pattern = !strcmp(what, "bursty") ? bursty : !strcmp(what, "ramp") ? ramp : steady;
			pthread_create(&t, NULL, run, NULL);
		}
		puts("done");
		fflush(stdout);
	}
	return 0;
}
