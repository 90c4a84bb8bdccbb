// SPDX-License-Identifier: Apache-2.0
// Functions that the workloads share. Each workload is one file with one purpose; -h prints its usage.

#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <err.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

// now returns the time of a clock in seconds.
static inline double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

// open_device opens a device by name, or the first one.
static inline struct ibv_context *open_device(const char *name)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);

	for (int i = 0; i < n; i++) {
		if (name && strcmp(name, ibv_get_device_name(list[i])))
			continue;
		struct ibv_context *context = ibv_open_device(list[i]);
		if (!context)
			err(1, "open %s", ibv_get_device_name(list[i]));
		ibv_free_device_list(list);
		return context;
	}
	errx(1, "no RDMA device %s", name ? name : "");
}

// pages returns a new mapping whose pages are resident.
static inline void *pages(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (p == MAP_FAILED)
		err(1, "mmap %zu bytes", size);
	return p;
}

// register_pages registers a memory region of this many bytes.
static inline struct ibv_mr *register_pages(struct ibv_pd *pd, size_t size)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, pages(size), size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);

	if (!mr)
		err(1, "reg_mr of %zu bytes", size);
	return mr;
}

static inline struct ibv_qp_init_attr rc_attr(struct ibv_cq *cq)
{
	return (struct ibv_qp_init_attr){
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
	};
}

static inline struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = rc_attr(cq);
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);

	if (!qp)
		err(1, "create_qp");
	return qp;
}

// to_itself addresses the port of a GID, which has an index.
static inline struct ibv_ah_attr to_itself(union ibv_gid gid, int index)
{
	return (struct ibv_ah_attr){
		.is_global = 1,
		.port_num = 1,
		.grh = {.dgid = gid, .sgid_index = index, .hop_limit = 64},
	};
}

// connect_to brings a QP to RTS, connected to another one on the same port.
static inline void connect_to(struct ibv_qp *qp, uint32_t peer, union ibv_gid gid, int index)
{
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_READ};
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = to_itself(gid, index),
	};
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};

	if (ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		err(1, "modify_qp to INIT");
	if (ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		err(1, "modify_qp to RTR");
	if (ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
		err(1, "modify_qp to RTS");
}

// connect_qp brings a QP to RTS, connected to itself.
static inline void connect_qp(struct ibv_qp *qp, union ibv_gid gid, int index)
{
	connect_to(qp, qp->qp_num, gid, index);
}

static volatile sig_atomic_t ended;

static inline void end(int sig)
{
	(void)sig;
	ended = 1;
}

// hold says "ready" and returns at SIGTERM, SIGINT or the end of standard input. A /dev/null there counts as no
// standard input at all.
static inline void hold(void)
{
	struct sigaction sa = {.sa_handler = end};
	struct pollfd in = {.fd = 0, .events = POLLIN};
	char path[64] = "", buf[64];

	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
	if (readlink("/proc/self/fd/0", path, sizeof path - 1) < 0 || !strcmp(path, "/dev/null"))
		in.fd = -1;
	printf("ready %d\n", getpid());
	fflush(stdout);
	while (!ended)
		if (poll(&in, 1, 100) > 0 && read(0, buf, sizeof buf) <= 0)
			return;
}
