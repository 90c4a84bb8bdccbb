// SPDX-License-Identifier: Apache-2.0
/* The public functions of NCCL 2.28, and of RCCL, with the types and the order of their arguments. */
#ifndef LIBRARY_H
#define LIBRARY_H

#include <stddef.h>

typedef struct communicator *ncclComm_t;
typedef struct {
	char internal[128];
} ncclUniqueId;
typedef int ncclResult_t, ncclDataType_t, ncclRedOp_t;
typedef void *stream_t;
typedef void config;

ncclResult_t ncclAllReduce(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, stream_t);
ncclResult_t ncclAllGather(const void *, void *, size_t, ncclDataType_t, ncclComm_t, stream_t);
ncclResult_t ncclReduceScatter(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, stream_t);
ncclResult_t ncclBroadcast(const void *, void *, size_t, ncclDataType_t, int root, ncclComm_t, stream_t);
ncclResult_t ncclBcast(void *, size_t, ncclDataType_t, int root, ncclComm_t, stream_t);
ncclResult_t ncclReduce(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int root, ncclComm_t, stream_t);
ncclResult_t ncclAlltoAll(const void *, void *, size_t, ncclDataType_t, ncclComm_t, stream_t);
ncclResult_t ncclGather(const void *, void *, size_t, ncclDataType_t, int root, ncclComm_t, stream_t);
ncclResult_t ncclScatter(const void *, void *, size_t, ncclDataType_t, int root, ncclComm_t, stream_t);
ncclResult_t ncclSend(const void *, size_t, ncclDataType_t, int peer, ncclComm_t, stream_t);
ncclResult_t ncclRecv(void *, size_t, ncclDataType_t, int peer, ncclComm_t, stream_t);
ncclResult_t ncclAllToAllv(const void *, const size_t *, const size_t *, void *, const size_t *, const size_t *, ncclDataType_t,
			   ncclComm_t, stream_t); /* RCCL only */
ncclResult_t ncclCommInitRank(ncclComm_t *, int nranks, ncclUniqueId, int rank);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *, int nranks, ncclUniqueId, int rank, config *);
ncclResult_t ncclCommInitRankScalable(ncclComm_t *, int nranks, int rank, int ids, ncclUniqueId *, config *);
ncclResult_t ncclCommInitAll(ncclComm_t *, int devices, const int *);
ncclResult_t ncclCommSplit(ncclComm_t, int color, int key, ncclComm_t *, config *);
ncclResult_t ncclCommShrink(ncclComm_t, int *excluded, int count, ncclComm_t *, config *, int flags);
ncclResult_t ncclCommGrow(ncclComm_t, int nranks, const ncclUniqueId *, int rank, ncclComm_t *, config *);
ncclResult_t ncclCommFinalize(ncclComm_t);
ncclResult_t ncclCommDestroy(ncclComm_t);
ncclResult_t ncclCommAbort(ncclComm_t);

#endif
