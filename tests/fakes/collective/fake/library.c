// SPDX-License-Identifier: Apache-2.0
/*
 * A FAKE of NCCL, and with -DRCCL of RCCL: its functions do nothing. A communicator is an address; the next
 * communicator has the address of one that was destroyed, as malloc's would.
 */
#include "library.h"

/* As the libraries have it: "strings" shows the version. */
#ifdef RCCL
const char version_text[] = "RCCL version : 2.27.7";
#else
const char version_text[] = "NCCL version 2.28.9+cuda13.0";
#endif

#define API __attribute__((visibility("default"), noinline))
#define COMMUNICATORS 4096

static struct communicator {
	int used;
	long padding;
} all[COMMUNICATORS];
static volatile long calls;

static ncclComm_t make(void)
{
	for (int i = 0; i < COMMUNICATORS; i++)
		if (!__sync_lock_test_and_set(&all[i].used, 1))
			return &all[i];
	return NULL;
}

static int end(ncclComm_t c)
{
	if (c >= all && c < all + COMMUNICATORS)
		__sync_lock_release(&c->used);
	return 0;
}

/* A real function begins with an instruction that the kernel emulates, as a jump is. In RCCL here it does not. */
#ifdef RCCL
static inline
#else
__attribute__((noinline)) static
#endif
int called(void)
{
	calls++;
	return 0;
}

API ncclResult_t ncclAllReduce(const void *s, void *r, size_t n, ncclDataType_t t, ncclRedOp_t o, ncclComm_t c, stream_t x)
{
	return called();
}

API ncclResult_t ncclAllGather(const void *s, void *r, size_t n, ncclDataType_t t, ncclComm_t c, stream_t x)
{
	return called();
}

API ncclResult_t ncclReduceScatter(const void *s, void *r, size_t n, ncclDataType_t t, ncclRedOp_t o, ncclComm_t c, stream_t x)
{
	return called();
}

API ncclResult_t ncclBroadcast(const void *s, void *r, size_t n, ncclDataType_t t, int root, ncclComm_t c, stream_t x)
{
	return called();
}

API ncclResult_t ncclBcast(void *b, size_t n, ncclDataType_t t, int root, ncclComm_t c, stream_t x)
{
	return ncclBroadcast(b, b, n, t, root, c, x);
}

API ncclResult_t ncclReduce(const void *s, void *r, size_t n, ncclDataType_t t, ncclRedOp_t o, int root, ncclComm_t c, stream_t x)
{
	return called();
}

API ncclResult_t ncclAlltoAll(const void *s, void *r, size_t n, ncclDataType_t t, ncclComm_t c, stream_t x)
{
	return called();
}

API ncclResult_t ncclGather(const void *s, void *r, size_t n, ncclDataType_t t, int root, ncclComm_t c, stream_t x)
{
	return called();
}

API ncclResult_t ncclScatter(const void *s, void *r, size_t n, ncclDataType_t t, int root, ncclComm_t c, stream_t x)
{
	return called();
}

API ncclResult_t ncclSend(const void *b, size_t n, ncclDataType_t t, int peer, ncclComm_t c, stream_t x)
{
	return called();
}

API ncclResult_t ncclRecv(void *b, size_t n, ncclDataType_t t, int peer, ncclComm_t c, stream_t x)
{
	return called();
}

#ifdef RCCL
API ncclResult_t ncclAllToAllv(const void *s, const size_t *sn, const size_t *sd, void *r, const size_t *rn, const size_t *rd,
			       ncclDataType_t t, ncclComm_t c, stream_t x)
{
	return called();
}
#endif

API ncclResult_t ncclCommInitRank(ncclComm_t *c, int nranks, ncclUniqueId id, int rank)
{
	*c = make();
	return 0;
}

API ncclResult_t ncclCommInitRankConfig(ncclComm_t *c, int nranks, ncclUniqueId id, int rank, config *g)
{
	*c = make();
	return 0;
}

API ncclResult_t ncclCommInitRankScalable(ncclComm_t *c, int nranks, int rank, int ids, ncclUniqueId *id, config *g)
{
	*c = make();
	return 0;
}

API ncclResult_t ncclCommInitAll(ncclComm_t *c, int devices, const int *list)
{
	for (int i = 0; i < devices; i++)
		c[i] = make();
	return 0;
}

API ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *made, config *g)
{
	*made = color < 0 ? NULL : make();
	return 0;
}

API ncclResult_t ncclCommShrink(ncclComm_t c, int *excluded, int count, ncclComm_t *made, config *g, int flags)
{
	*made = make();
	return 0;
}

API ncclResult_t ncclCommGrow(ncclComm_t c, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *made, config *g)
{
	*made = make();
	return 0;
}

API ncclResult_t ncclCommFinalize(ncclComm_t c)
{
	return called();
}

API ncclResult_t ncclCommDestroy(ncclComm_t c)
{
	return end(c);
}

API ncclResult_t ncclCommAbort(ncclComm_t c)
{
	return end(c);
}
