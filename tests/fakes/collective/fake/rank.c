// SPDX-License-Identifier: Apache-2.0
/*
 * A program that uses the FAKE library, which it opens or (-DSTATIC) contains. Each line of standard input is an order,
 * and each gets "ok" as answer. SLOT is the number of a communicator in this process, ID a number that becomes an id.
 *
 *   load LIBRARY                          opens a library
 *   init HOW SLOT ID RANKS RANK           makes a communicator with rank, config or scalable
 *   all SLOT DEVICES                      makes communicators of this process
 *   split FROM SLOT COLOR KEY
 *   shrink FROM SLOT EXCLUDED             EXCLUDED is the number of ranks
 *   grow FROM SLOT ID RANKS RANK          FROM or ID may be -1
 *   move SLOT                             moves the handle to another place in memory
 *   call OPERATION SLOT TIMES COUNT TYPE
 *   threads OPERATION SLOT TIMES COUNT TYPE   in four threads at once
 *   end HOW SLOT                          with finalize, destroy or abort
 *   graph TIMES                           launches graphs
 *   torch STEPS                           has libtorch_cuda.so make a communicator and launch
 *   bad                                   calls functions with pointers to nothing
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "library.h"

#define SLOTS 4096

static ncclComm_t made[SLOTS], moved[SLOTS];
static void *library;
static char buffer[1 << 16];

static ncclComm_t comm(int slot)
{
	return moved[slot] ? moved[slot] : made[slot];
}

#ifdef STATIC
#define FUNCTION(name) name
#else
static void *find(const char *name)
{
	void *f = library ? dlsym(library, name) : NULL;

	if (!f) {
		printf("no %s\n", name);
		exit(1);
	}
	return f;
}
#define FUNCTION(name) ((__typeof__(&name))find(#name))
#endif

static ncclUniqueId id_of(long n)
{
	ncclUniqueId id;

	for (unsigned int i = 0; i < sizeof(id); i++)
		id.internal[i] = (char)(n * 7 + i * (n + 1));
	return id;
}

struct job {
	char operation[32];
	int slot, type;
	long times;
	unsigned long count;
};

static int run(struct job *j)
{
	ncclComm_t c = comm(j->slot);
	unsigned long n = j->count;
	int t = j->type;

#define CALL(op, name, ...)                                                                                            \
	if (!strcmp(j->operation, op)) {                                                                               \
		__typeof__(&name) f = FUNCTION(name);                                                                  \
		for (long i = 0; i < j->times; i++)                                                                    \
			f(__VA_ARGS__);                                                                                \
		return 0;                                                                                              \
	}
	CALL("all_reduce", ncclAllReduce, buffer, buffer, n, t, 0, c, NULL)
	CALL("all_gather", ncclAllGather, buffer, buffer, n, t, c, NULL)
	CALL("reduce_scatter", ncclReduceScatter, buffer, buffer, n, t, 0, c, NULL)
	CALL("broadcast", ncclBroadcast, buffer, buffer, n, t, 3, c, NULL)
	CALL("bcast", ncclBcast, buffer, n, t, 3, c, NULL)
	CALL("reduce", ncclReduce, buffer, buffer, n, t, 0, 3, c, NULL)
	CALL("all_to_all", ncclAlltoAll, buffer, buffer, n, t, c, NULL)
	CALL("gather", ncclGather, buffer, buffer, n, t, 3, c, NULL)
	CALL("scatter", ncclScatter, buffer, buffer, n, t, 3, c, NULL)
	CALL("send", ncclSend, buffer, n, t, 3, c, NULL)
	CALL("recv", ncclRecv, buffer, n, t, 3, c, NULL)
#ifndef STATIC
	CALL("all_to_all_v", ncclAllToAllv, buffer, &n, &n, buffer, &n, &n, t, c, NULL)
#endif
	return -1;
}

static void *run_thread(void *job)
{
	return (void *)(intptr_t)run(job);
}

static int run_threads(struct job *j)
{
	pthread_t threads[4];

	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, run_thread, j);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	return 0;
}

static void init(const char *how, int slot, long id, int ranks, int rank)
{
	ncclUniqueId unique = id_of(id);

	if (!strcmp(how, "rank"))
		FUNCTION(ncclCommInitRank)(&made[slot], ranks, unique, rank);
	else if (!strcmp(how, "config"))
		FUNCTION(ncclCommInitRankConfig)(&made[slot], ranks, unique, rank, NULL);
	else
		FUNCTION(ncclCommInitRankScalable)(&made[slot], ranks, rank, 1, &unique, NULL);
}

static void grow(int from, int slot, long id, int ranks, int rank)
{
	ncclUniqueId unique = id_of(id);

	FUNCTION(ncclCommGrow)(from < 0 ? NULL : comm(from), ranks, id < 0 ? NULL : &unique, rank, &made[slot], NULL);
}

/* The library does not read its pointers, except the one to which it would write a handle: not called here. */
static void bad(void)
{
	ncclComm_t never;
	void *nowhere[] = {NULL, (void *)8, (void *)-8L, (void *)0xdeadbeefcafe0000UL};

	for (int i = 0; i < 4; i++) {
		FUNCTION(ncclAllReduce)(nowhere[i], nowhere[i], -1UL, 1 << 30, 0, nowhere[i], NULL);
		FUNCTION(ncclReduce)(nowhere[i], nowhere[i], 1UL << 60, -1, 0, 0, nowhere[i], NULL);
		FUNCTION(ncclCommInitRankScalable)(&never, -1, -1, -1, nowhere[i], NULL);
		FUNCTION(ncclCommSplit)(nowhere[i], 1, 1, &never, NULL);
		FUNCTION(ncclCommShrink)(nowhere[i], nowhere[i], -1, &never, nowhere[i], -1);
		FUNCTION(ncclCommGrow)(nowhere[i], -1, nowhere[i], -1, &never, nowhere[i]);
		FUNCTION(ncclCommInitAll)(made, -1, nowhere[i]);
		FUNCTION(ncclCommDestroy)(nowhere[i]);
	}
}

static int end(const char *how, int slot)
{
	ncclComm_t c = comm(slot);

	if (!strcmp(how, "finalize"))
		return FUNCTION(ncclCommFinalize)(c);
	if (!strcmp(how, "abort"))
		return FUNCTION(ncclCommAbort)(c);
	return FUNCTION(ncclCommDestroy)(c);
}

static int graph(long times)
{
	int (*launch)(void *, void *) = (int (*)(void *, void *))dlsym(RTLD_DEFAULT, "cuGraphLaunch");

	for (long i = 0; launch && i < times; i++)
		launch(NULL, NULL);
	return launch ? 0 : -1;
}

static int torch(int steps)
{
	void (*run)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "torch_steps");

	if (run)
		run(steps);
	return run ? 0 : -1;
}

static int obey(const char *line)
{
	char text[256];
	int a, b, c, d;
	long id;
	struct job j;

	if (sscanf(line, "load %255s", text) == 1) {
		void *opened = dlopen(text, RTLD_NOW | RTLD_GLOBAL);

		if (opened && dlsym(opened, "ncclAllReduce"))
			library = opened;
		return opened ? 0 : -1;
	}
	if (sscanf(line, "init %31s %d %ld %d %d", text, &a, &id, &b, &c) == 5)
		init(text, a, id, b, c);
	else if (sscanf(line, "all %d %d", &a, &b) == 2)
		FUNCTION(ncclCommInitAll)(&made[a], b, NULL);
	else if (sscanf(line, "split %d %d %d %d", &a, &b, &c, &d) == 4)
		FUNCTION(ncclCommSplit)(comm(a), c, d, &made[b], NULL);
	else if (sscanf(line, "shrink %d %d %d", &a, &b, &c) == 3)
		FUNCTION(ncclCommShrink)(comm(a), NULL, c, &made[b], NULL, 0);
	else if (sscanf(line, "grow %d %d %ld %d %d", &a, &b, &id, &c, &d) == 5)
		grow(a, b, id, c, d);
	else if (sscanf(line, "move %d", &a) == 1)
		moved[a] = made[a], made[a] = (void *)1;
	else if (sscanf(line, "call %31s %d %ld %lu %d", j.operation, &j.slot, &j.times, &j.count, &j.type) == 5)
		return run(&j);
	else if (sscanf(line, "threads %31s %d %ld %lu %d", j.operation, &j.slot, &j.times, &j.count, &j.type) == 5)
		return run_threads(&j);
	else if (sscanf(line, "end %31s %d", text, &a) == 2)
		return end(text, a);
	else if (sscanf(line, "graph %ld", &id) == 1)
		return graph(id);
	else if (sscanf(line, "torch %d", &a) == 1)
		return torch(a);
	else if (!strcmp(line, "bad\n"))
		bad();
	else
		return -1;
	return 0;
}

int main(int argc, char **argv)
{
	char line[512];

	setlinebuf(stdout);
	while (fgets(line, sizeof(line), stdin))
		puts(obey(line) ? "failed" : "ok");
	return 0;
}
