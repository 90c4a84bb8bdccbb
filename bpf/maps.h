/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Keys, values and limits that the programs share with user space. bpf2go makes the Go types from these. */
#ifndef ACCELSCOPE_MAPS_H
#define ACCELSCOPE_MAPS_H

#include "kernel.h"

/* Buckets of a duration histogram: upper bounds 2^-20 s to 2^5 s, and the rest. */
#define BUCKETS 27

/*
 * The verbs, in the words of the kernel's commands. The programs map calls of containers to this list, so that a
 * container cannot make keys at will.
 */
enum verb {
	VERB_OTHER,
	VERB_GET_CONTEXT,
	VERB_QUERY_DEVICE,
	VERB_QUERY_PORT,
	VERB_QUERY_GID,
	VERB_ASYNC_EVENT,
	VERB_COMP_CHANNEL,
	VERB_ALLOC_PD,
	VERB_DEALLOC_PD,
	VERB_CREATE_AH,
	VERB_DESTROY_AH,
	VERB_REG_MR,
	VERB_REG_DMABUF_MR,
	VERB_REREG_MR,
	VERB_ADVISE_MR,
	VERB_DEREG_MR,
	VERB_ALLOC_MW,
	VERB_DEALLOC_MW,
	VERB_CREATE_CQ,
	VERB_MODIFY_CQ,
	VERB_POLL_CQ,
	VERB_REQ_NOTIFY_CQ,
	VERB_DESTROY_CQ,
	VERB_CREATE_QP,
	VERB_QUERY_QP,
	VERB_MODIFY_QP,
	VERB_DESTROY_QP,
	VERB_CREATE_SRQ,
	VERB_QUERY_SRQ,
	VERB_MODIFY_SRQ,
	VERB_DESTROY_SRQ,
	VERB_POST_SEND,
	VERB_POST_RECV,
	VERB_ATTACH_MCAST,
	VERB_DETACH_MCAST,
	VERB_FLOW,
	VERB_XRCD,
	VERB_WQ,
	VERB_DEVX,
	VERBS,
};

/* Object types: the types of restrack, then uverbs object classes that restrack does not see. */
enum object_type {
	TYPE_PD,
	TYPE_CQ,
	TYPE_QP,
	TYPE_CM_ID,
	TYPE_MR,
	TYPE_CTX,
	TYPE_COUNTER,
	TYPE_SRQ,
	TYPE_AH,
	TYPE_MW,
	TYPE_FLOW,
	TYPE_XRCD,
	TYPE_WQ,
	TYPE_DM,
	TYPE_DEVX_OBJ,
	TYPE_DEVX_UMEM,
	TYPE_OTHER,
	TYPES,
};

enum memory {
	MEMORY_HOST,
	MEMORY_GPU,          /* a dma-buf of a GPU driver */
	MEMORY_DMABUF,       /* a dma-buf of another exporter */
	MEMORY_DEVICE,       /* memory of the HCA itself */
	MEMORY_IMPLICIT_ODP, /* the whole address space, without a length */
	MEMORY_UNKNOWN,
	MEMORIES,
};

/*
 * What could not be recorded, and why. FULL: the map has no room for the entry. SHARE: the owner used up its share
 * of the map (owner.h).
 */
enum loss {
	LOSS_VERBS_FULL,    /* (cgroup, device, verb): counted for cgroup 0 if possible */
	LOSS_ERRORS_FULL,   /* (cgroup, device, verb, errno) */
	LOSS_CALLS_FULL,    /* the start of a call */
	LOSS_RETURN_MISSED, /* the return of a call was not seen */
	LOSS_OBJECTS_FULL,  /* a live object */
	LOSS_HOLDINGS_FULL, /* (cgroup, device, type) */
	LOSS_PEERS_FULL,    /* a connected queue pair */
	LOSS_VERBS_SHARE,
	LOSS_ERRORS_SHARE,
	LOSS_OBJECTS_SHARE,
	LOSS_HOLDINGS_SHARE,
	LOSS_PEERS_SHARE,
	LOSSES,
};

/* The maps of each program file with a share per owner (owner.h). */
enum verb_map {
	VERBS_OF_OWNER,
	ERRORS_OF_OWNER,
};

enum object_map {
	OBJECTS_OF_OWNER,
	HOLDINGS_OF_OWNER,
};

enum peer_map {
	PEERS_OF_OWNER,
};

enum access_map {
	OPENS_OF_OWNER,
};

enum driver_map {
	DRIVER_STATS_OF_OWNER,
	DRIVER_CALLS_OF_OWNER,
};

struct verb_key {
	__u64 cgroup;
	__u32 rdev; /* device number of the uverbs character device */
	__u32 verb;
};

/* The number of calls is the sum of the buckets. */
struct verb_stat {
	__u64 owner; /* the cgroup whose share this entry takes (owner.h) */
	__u64 sum_ns;
	__u64 buckets[BUCKETS];
};

struct error_key {
	__u64 cgroup;
	__u32 rdev;
	__u16 verb;
	__u16 err;
};

struct error_stat {
	__u64 owner;
	__u64 count;
};

struct call {
	__u64 start_ns;
	__u64 arg; /* user pointer: the ioctl's or the write's buffer */
	__u32 rdev;
	__u32 write; /* 1 write(), 0 ioctl() */
};

/* A live object. */
struct object {
	__u64 cgroup;
	__u64 owner;
	__u64 bytes;
	__u32 device; /* index of the ib_device */
	__u32 id;     /* restrack id, or 0 without an id */
	__u8 type;
	__u8 memory;
	__u8 hidden;   /* its destruction has begun */
	__u8 numbered; /* id is known, and the kernel tracks the object */
	__u8 pad[4];
};

/* An object older than the hooks, known from RDMA netlink. */
struct adopted_key {
	__u32 device;
	__u32 type;
	__u32 id;
};

struct holding_key {
	__u64 cgroup;
	__u32 device;
	__u16 type;
	__u16 memory;
};

struct holding {
	__u64 owner;
	__s64 current;
	__u64 created;
	__s64 bytes;
};

/* A connected queue pair. */
struct peer_key {
	__u32 device; /* index of the ib_device */
	__u32 qpn;
};

struct peer {
	__u64 cgroup; /* of the process that connected it */
	__u64 owner;
	__u8 gid[16];
	__u32 lid;
	__u32 qpn;
	__u32 port;  /* local port */
	__u32 type;  /* enum ib_qp_type */
	__u32 state; /* enum ib_qp_state, last set by the process */
	__u8 routed; /* gid is set */
	__u8 pad[3];
};

/* All majors that fit in a device number; the majors of drivers are below 512. */
#define MAJORS 4096

enum watch {
	WATCH_NONE,
	WATCH_ALL,   /* all minors */
	WATCH_NODES, /* the minors in a map */
};

enum access_loss {
	LOSS_OPENS_FULL,         /* no room for (cgroup, device) */
	LOSS_OPENS_SHARE,        /* (cgroup, device): the owner used up its share of the map (owner.h) */
	LOSS_OPEN_RETURN_MISSED, /* the return of an open was not seen */
	ACCESS_LOSSES,
};

struct access_key {
	__u64 cgroup;
	__u32 rdev; /* the highest minor stands for denied minors that do not exist */
	__u32 pad;
};

struct access_count {
	__u64 owner;
	__u64 allowed;
	__u64 denied;
};

/* An open file of a watched device, in a process. */
struct open_file {
	__u64 file; /* identifies the file */
	__u64 cgroup;
	__u32 rdev;
	__u32 tgid;
};

/* Bytes that are kept of a module's name, including the NUL: nvidia_modeset. */
#define DRIVER_NAME 16

enum driver_loss {
	LOSS_DRIVER_STATS_FULL,  /* no room for (cgroup, driver, kind) */
	LOSS_DRIVER_STATS_SHARE, /* (cgroup, driver, kind): the owner used up its share of the map (owner.h) */
	LOSS_DRIVER_CALLS_FULL,  /* no room for a call in progress */
	LOSS_DRIVER_CALLS_SHARE, /* call in progress: the owner used up its share of the map */
	LOSS_DRIVER_RETURN_MISSED,
	DRIVER_LOSSES,
};

struct driver_key {
	__u64 cgroup;
	char driver[DRIVER_NAME]; /* the module */
	__u64 waits;              /* 1: requests that wait on purpose */
};

/* The number of ended calls is the sum of the buckets. */
struct driver_stat {
	__u64 owner;
	__u64 sum_ns;
	__u64 buckets[BUCKETS];
};

/* An ioctl in progress. */
struct driver_call {
	struct driver_key key;
	__u64 owner;
	__u64 start_ns;
	__u64 file;      /* identifies the open file */
	__u64 task;      /* struct task_struct of the thread */
	__u64 registers; /* where the kernel keeps its registers */
	__u32 tgid;
	__u32 request;
	__u64 drm; /* seen by drm_ioctl, not by an operation of the driver */
};

/* A request of a driver, or of all DRM drivers if the name is empty. */
struct driver_request {
	char driver[DRIVER_NAME];
	__u16 request; /* type << 8 | number */
};

struct cgroup_path {
	char path[512];
};

struct device_name {
	char name[64];
};

#endif
