// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Counts the live RDMA objects of each cgroup on each HCA, and their registered bytes, while the kernel tracks
 * them.
 *
 * rdma_restrack_add() runs in the context of the creator, so its cgroup is certain. Ids of the connection manager
 * are the exception: they have the task of their creator. Deletes may run anywhere, so each live object stores the
 * cgroup that it was counted for.
 */
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include "maps.h"
#include "owner.h"
#include "uverbs.h"

char LICENSE[] SEC("license") = "GPL";

/* User space sets the sizes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64); /* address of the restrack entry or uobject */
	__type(value, struct object);
} objects SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct adopted_key);
	__type(value, struct object);
} adopted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct holding_key);
	__type(value, struct holding);
} holdings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct device_name);
} devices SEC(".maps");

/* The argument of a call until its return, by thread and function: kretprobes do not see arguments. */
enum function {
	RESTRACK_ADD,
	DESTROY_UOBJECT,
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, __u64);
} arguments SEC(".maps");

/* A dma-buf or peer memory that a thread has mapped, before it becomes a memory region. */
struct mapping {
	__u64 umem;
	__u64 bytes;
	__u32 memory;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, struct mapping);
} mappings SEC(".maps");

/*
 * The kind of a memory region without a mapping. User space sets MEMORY_HOST if the hooks see every function that
 * maps the memory of another device.
 */
__u32 plain_memory = MEMORY_UNKNOWN;

__u64 object_losses[LOSSES];

/* LOSS_OBJECTS_FULL and LOSS_OBJECTS_SHARE by type: user space lists objects of these types again. */
__u64 objects_full[TYPES];

/* Makes bpf2go generate these types. */
const enum object_type *unused_object_type __attribute__((unused));
const enum memory *unused_memory __attribute__((unused));
const enum object_map *unused_object_map __attribute__((unused));

/* Entries of the objects and adopted maps. User space would have to walk the maps. */
__u64 live_objects;
__u64 live_adopted;

static __always_inline void lose(__u32 why)
{
	__sync_fetch_and_add(&object_losses[why], 1);
}

static const struct holding zero_holding;

static __always_inline struct holding *holding_of(const struct object *o)
{
	struct holding_key key = {.cgroup = o->cgroup, .device = o->device, .type = o->type, .memory = o->memory};
	struct holding *h = bpf_map_lookup_elem(&holdings, &key);

	if (h || has_share(o->owner, HOLDINGS_OF_OWNER))
		return h;
	if (!bpf_map_update_elem(&holdings, &key, &zero_holding, BPF_NOEXIST))
		count_entries(o->owner, HOLDINGS_OF_OWNER, 1);
	h = bpf_map_lookup_elem(&holdings, &key);
	if (h)
		h->owner = o->owner;
	return h;
}

/* Counts an object. Without room the object is hidden, and is not subtracted at its end. */
static __always_inline void give(struct object *o, __u64 created)
{
	struct holding *h = holding_of(o);

	o->hidden = !h;
	if (!h) {
		lose(lost_by_share(o->owner, HOLDINGS_OF_OWNER) ? LOSS_HOLDINGS_SHARE : LOSS_HOLDINGS_FULL);
		return;
	}
	__sync_fetch_and_add(&h->current, 1);
	__sync_fetch_and_add(&h->created, created);
	__sync_fetch_and_add(&h->bytes, o->bytes);
}

static __always_inline void take(const struct object *o)
{
	struct holding *h = holding_of(o);

	if (!h)
		return;
	__sync_fetch_and_add(&h->current, -1);
	__sync_fetch_and_add(&h->bytes, -o->bytes);
}

static __always_inline void name_device(struct ib_device *device, __u32 index)
{
	struct device_name name = {};

	bpf_core_read_str(name.name, sizeof(name.name), &device->name);
	bpf_map_update_elem(&devices, &index, &name, BPF_ANY);
}

static __always_inline int remember(__u64 address, struct object *o, struct ib_device *device, __u64 created)
{
	struct object *old = bpf_map_lookup_elem(&objects, &address);
	__u64 former = old ? old->owner : 0;

	o->device = BPF_CORE_READ(device, index);
	/* The memory was reused, and the end of the former object went unseen. */
	if (old && !old->hidden)
		take(old);
	name_device(device, o->device);
	give(o, created);
	if ((!old && has_share(o->owner, OBJECTS_OF_OWNER)) || bpf_map_update_elem(&objects, &address, o, BPF_ANY)) {
		/* An object that is not remembered would never end. */
		if (!o->hidden)
			take(o);
		lose(lost_by_share(o->owner, OBJECTS_OF_OWNER) ? LOSS_OBJECTS_SHARE : LOSS_OBJECTS_FULL);
		if (o->type < TYPES)
			__sync_fetch_and_add(&objects_full[o->type], 1);
		return 0;
	}
	if (old)
		count_entries(former, OBJECTS_OF_OWNER, -1);
	else
		__sync_fetch_and_add(&live_objects, 1);
	count_entries(o->owner, OBJECTS_OF_OWNER, 1);
	return 0;
}

/* Two programs may find the end of an object of the uobject layer: only one of them deletes the entry. */
static __always_inline void forget(__u64 address, const struct object *o)
{
	struct object last = *o;

	if (bpf_map_delete_elem(&objects, &address))
		return;
	if (!last.hidden)
		take(&last);
	__sync_fetch_and_add(&live_objects, -1);
	count_entries(last.owner, OBJECTS_OF_OWNER, -1);
}

/* The object that contains a restrack entry, by its type. */
#define OWNER(res, type) ((struct type *)((void *)(res)-bpf_core_field_offset(struct type, res)))

static __always_inline struct ib_device *device_of(struct rdma_restrack_entry *res, __u32 type)
{
	switch (type) {
	case RDMA_RESTRACK_PD:
		return BPF_CORE_READ(OWNER(res, ib_pd), device);
	case RDMA_RESTRACK_CQ:
		return BPF_CORE_READ(OWNER(res, ib_cq), device);
	case RDMA_RESTRACK_QP:
		return BPF_CORE_READ(OWNER(res, ib_qp), device);
	case RDMA_RESTRACK_CM_ID:
		if (bpf_core_type_exists(struct rdma_id_private))
			return BPF_CORE_READ(OWNER(res, rdma_id_private), id.device);
		break;
	case RDMA_RESTRACK_MR:
		return BPF_CORE_READ(OWNER(res, ib_mr), device);
	case RDMA_RESTRACK_CTX:
		return BPF_CORE_READ(OWNER(res, ib_ucontext), device);
	case RDMA_RESTRACK_SRQ:
		/* 5.15 and later */
		if (bpf_core_field_exists(struct ib_srq, res))
			return BPF_CORE_READ(OWNER(res, ib_srq), device);
	}
	return 0;
}

static __always_inline __u32 restrack_type(struct rdma_restrack_entry *res)
{
	return BPF_CORE_READ(res, type);
}

/* The first object of a table has the id 0, and so has an object that the kernel does not track. */
static __always_inline void number(struct object *o, struct rdma_restrack_entry *res)
{
	o->id = BPF_CORE_READ(res, id);
	/* 5.12 and later */
	if (bpf_core_field_exists(res->no_track))
		o->numbered = !BPF_CORE_READ_BITFIELD_PROBED(res, no_track);
	else
		o->numbered = 1;
}

/* The length of an implicit ODP region, which covers the whole address space of its process. */
#define WHOLE_ADDRESS_SPACE (~0ULL)

static __always_inline void region(struct object *o, struct ib_mr *mr)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct mapping *mapping = bpf_map_lookup_elem(&mappings, &tid);

	o->bytes = BPF_CORE_READ(mr, length);
	o->memory = plain_memory;
	if (mapping) {
		/* Some drivers leave the length of a dma-buf region unset. */
		if (!o->bytes)
			o->bytes = mapping->bytes;
		o->memory = mapping->memory;
		bpf_map_delete_elem(&mappings, &tid);
	} else if (BPF_CORE_READ(mr, type) == IB_MR_TYPE_DM) {
		o->memory = MEMORY_DEVICE;
	} else if (o->bytes == WHOLE_ADDRESS_SPACE) {
		o->bytes = 0;
		o->memory = MEMORY_IMPLICIT_ODP;
	}
}

/*
 * A kernel worker binds an id of the connection manager to its device when the address is resolved, and creates the
 * id of an incoming connection. The kernel gives the new id the task of the listening id.
 */
static __always_inline void set_creator(struct object *o, struct rdma_restrack_entry *res)
{
	struct owner owner;

	if (o->type == TYPE_CM_ID) {
		struct task_struct *task = BPF_CORE_READ(res, task);

		owner_of(task, cgroup_of(task), &owner);
	} else {
		current_owner(&owner);
	}
	o->cgroup = owner.cgroup;
	o->owner = owner.share;
}

static __noinline int added(struct rdma_restrack_entry *res, bool with_id)
{
	struct ib_device *device;
	struct object o = {};

	if (!BPF_CORE_READ(res, user))
		return 0;
	o.type = restrack_type(res);
	device = device_of(res, o.type);
	if (!device)
		return 0;
	set_creator(&o, res);
	if (with_id)
		number(&o, res);
	if (o.type == TYPE_MR)
		region(&o, OWNER(res, ib_mr));
	return remember((__u64)res, &o, device, 1);
}

static __always_inline int adopted_key(struct rdma_restrack_entry *res, struct adopted_key *key)
{
	struct ib_device *device;

	/* An id of the connection manager that ends before it is added has no number. */
	if (!BPF_CORE_READ(res, valid))
		return -1;
	key->type = restrack_type(res);
	device = device_of(res, key->type);
	if (!device)
		return -1;
	key->device = BPF_CORE_READ(device, index);
	key->id = BPF_CORE_READ(res, id);
	return 0;
}

static __noinline int deleted(struct rdma_restrack_entry *res)
{
	__u64 address = (__u64)res;
	struct object *o = bpf_map_lookup_elem(&objects, &address);
	struct adopted_key key = {};

	if (o) {
		forget(address, o);
		return 0;
	}
	if (!BPF_CORE_READ(res, user) || adopted_key(res, &key))
		return 0;
	o = bpf_map_lookup_elem(&adopted, &key);
	if (!o)
		return 0;
	if (!o->hidden)
		take(o);
	if (bpf_map_delete_elem(&adopted, &key) == 0)
		__sync_fetch_and_add(&live_adopted, -1);
	return 0;
}

/* Destruction in two steps: the first hides the object, the second restores or ends it. */
static __always_inline void hide(struct object *o, __u32 hidden)
{
	if (!o || o->hidden == hidden)
		return;
	o->hidden = hidden;
	if (hidden)
		take(o);
	else
		give(o, 0);
}

static __noinline int set_hidden(struct rdma_restrack_entry *res, __u32 hidden)
{
	__u64 address = (__u64)res;
	struct object *o = bpf_map_lookup_elem(&objects, &address);
	struct adopted_key key = {};

	if (!o) {
		if (!BPF_CORE_READ(res, user) || adopted_key(res, &key))
			return 0;
		o = bpf_map_lookup_elem(&adopted, &key);
	}
	hide(o, hidden);
	return 0;
}

/* rdma_restrack_add() assigns the id. */
static __noinline int numbered(struct rdma_restrack_entry *res)
{
	__u64 address = (__u64)res;
	struct object *o = bpf_map_lookup_elem(&objects, &address);

	if (o)
		number(o, res);
	return 0;
}

SEC("fexit/rdma_restrack_add")
int BPF_PROG(fexit_restrack_add, struct rdma_restrack_entry *res)
{
	return added(res, true);
}

SEC("fentry/rdma_restrack_del")
int BPF_PROG(fentry_restrack_del, struct rdma_restrack_entry *res)
{
	return deleted(res);
}

SEC("fentry/rdma_restrack_begin_del")
int BPF_PROG(fentry_restrack_begin_del, struct rdma_restrack_entry *res)
{
	return set_hidden(res, 1);
}

SEC("fentry/rdma_restrack_abort_del")
int BPF_PROG(fentry_restrack_abort_del, struct rdma_restrack_entry *res)
{
	return set_hidden(res, 0);
}

SEC("fentry/rdma_restrack_commit_del")
int BPF_PROG(fentry_restrack_commit_del, struct rdma_restrack_entry *res)
{
	return deleted(res);
}

static __always_inline __u64 argument_key(enum function function)
{
	return (__u64)function << 32 | (__u32)bpf_get_current_pid_tgid();
}

static __always_inline int keep_argument(enum function function, __u64 argument)
{
	__u64 key = argument_key(function);

	bpf_map_update_elem(&arguments, &key, &argument, BPF_ANY);
	return 0;
}

static __always_inline __u64 kept_argument(enum function function)
{
	__u64 key = argument_key(function);
	__u64 *found = bpf_map_lookup_elem(&arguments, &key);
	__u64 argument;

	if (!found) {
		lose(LOSS_RETURN_MISSED);
		return 0;
	}
	argument = *found;
	bpf_map_delete_elem(&arguments, &key);
	return argument;
}

/* Counted at the entry: if the return is missed, only the id is missing. */
SEC("kprobe/rdma_restrack_add")
int BPF_KPROBE(kprobe_restrack_add, struct rdma_restrack_entry *res)
{
	added(res, false);
	return keep_argument(RESTRACK_ADD, (__u64)res);
}

SEC("kretprobe/rdma_restrack_add")
int BPF_KRETPROBE(kretprobe_restrack_add)
{
	__u64 res = kept_argument(RESTRACK_ADD);

	return res ? numbered((struct rdma_restrack_entry *)res) : 0;
}

/*
 * User space runs this program with the address of an object whose return of rdma_restrack_add was missed, to read
 * the id.
 */
SEC("raw_tp")
int number_object(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 address = ctx->args[0];
	struct object *o = bpf_map_lookup_elem(&objects, &address);
	struct rdma_restrack_entry *res = (struct rdma_restrack_entry *)address;
	struct ib_device *device;

	if (!o || o->numbered)
		return 0;
	device = device_of(res, o->type);
	/* The object may have ended unseen, and another object may use its memory. */
	if (device && BPF_CORE_READ(device, index) == o->device && restrack_type(res) == o->type &&
	    BPF_CORE_READ(res, valid))
		number(o, res);
	return 0;
}

SEC("kprobe/rdma_restrack_del")
int BPF_KPROBE(kprobe_restrack_del, struct rdma_restrack_entry *res)
{
	return deleted(res);
}

SEC("kprobe/rdma_restrack_begin_del")
int BPF_KPROBE(kprobe_restrack_begin_del, struct rdma_restrack_entry *res)
{
	return set_hidden(res, 1);
}

SEC("kprobe/rdma_restrack_abort_del")
int BPF_KPROBE(kprobe_restrack_abort_del, struct rdma_restrack_entry *res)
{
	return set_hidden(res, 0);
}

SEC("kprobe/rdma_restrack_commit_del")
int BPF_KPROBE(kprobe_restrack_commit_del, struct rdma_restrack_entry *res)
{
	return deleted(res);
}

/*
 * The generic uobject layer, for objects that restrack does not track: address handles, memory windows, flows, and
 * the DEVX objects of mlx5, which UCX uses for its queue pairs.
 */

/*
 * The type of an object class: enum uverbs_default_objects and mlx5_ib_objects. -1: restrack tracks it, or it is
 * not an object (the device, completion channels and asynchronous event files).
 */
static __always_inline int uobject_type(__u32 class, __u32 driver)
{
	switch (class) {
	case UVERBS_OBJECT_DEVICE:
	case UVERBS_OBJECT_PD:
	case UVERBS_OBJECT_COMP_CHANNEL:
	case UVERBS_OBJECT_CQ:
	case UVERBS_OBJECT_QP:
	case UVERBS_OBJECT_SRQ:
	case UVERBS_OBJECT_MR:
	case UVERBS_OBJECT_ASYNC_EVENT:
		return -1;
	case UVERBS_OBJECT_AH:
		return TYPE_AH;
	case UVERBS_OBJECT_MW:
		return TYPE_MW;
	case UVERBS_OBJECT_FLOW:
		return TYPE_FLOW;
	case UVERBS_OBJECT_XRCD:
		return TYPE_XRCD;
	case UVERBS_OBJECT_WQ:
		return TYPE_WQ;
	case UVERBS_OBJECT_DM:
		return TYPE_DM;
	case MLX5_IB_OBJECT_DEVX_OBJ:
		return driver == RDMA_DRIVER_MLX5 ? TYPE_DEVX_OBJ : TYPE_OTHER;
	case MLX5_IB_OBJECT_DEVX_UMEM:
		return driver == RDMA_DRIVER_MLX5 ? TYPE_DEVX_UMEM : TYPE_OTHER;
	}
	return TYPE_OTHER;
}

static __noinline int committed(struct ib_uobject *uobj)
{
	struct ib_device *device = BPF_CORE_READ(uobj, context, device);
	__u32 tid = bpf_get_current_pid_tgid();
	struct object o = {};
	struct owner owner;
	int type;

	/* A dma-buf that was mapped for this object, such as a DEVX umem, does not belong to a later region. */
	bpf_map_delete_elem(&mappings, &tid);
	if (!device)
		return 0;
	type = uobject_type(BPF_CORE_READ(uobj, uapi_object, id), BPF_CORE_READ(device, ops.driver_id));
	if (type < 0)
		return 0;
	o.type = type;
	current_owner(&owner);
	o.cgroup = owner.cgroup;
	o.owner = owner.share;
	return remember((__u64)uobj, &o, device, 1);
}

static __noinline int destroyed(__u64 address)
{
	struct object *o = bpf_map_lookup_elem(&objects, &address);

	if (o)
		forget(address, o);
	return 0;
}

static __noinline int hide_uobject(__u64 address, __u32 hidden)
{
	hide(bpf_map_lookup_elem(&objects, &address), hidden);
	return 0;
}

SEC("fentry/rdma_alloc_commit_uobject")
int BPF_PROG(fentry_commit_uobject, struct ib_uobject *uobj)
{
	return committed(uobj);
}

SEC("fexit/uverbs_destroy_uobject")
int BPF_PROG(fexit_destroy_uobject, struct ib_uobject *uobj, int reason, void *attrs, int ret)
{
	return ret ? 0 : destroyed((__u64)uobj);
}

SEC("kprobe/rdma_alloc_commit_uobject")
int BPF_KPROBE(kprobe_commit_uobject, struct ib_uobject *uobj)
{
	return committed(uobj);
}

/* Hidden at the entry: the return may be missed, and the object would stay forever. */
SEC("kprobe/uverbs_destroy_uobject")
int BPF_KPROBE(kprobe_destroy_uobject, struct ib_uobject *uobj)
{
	hide_uobject((__u64)uobj, 1);
	return keep_argument(DESTROY_UOBJECT, (__u64)uobj);
}

SEC("kretprobe/uverbs_destroy_uobject")
int BPF_KRETPROBE(kretprobe_destroy_uobject, int ret)
{
	__u64 uobj = kept_argument(DESTROY_UOBJECT);

	if (!uobj)
		return 0;
	return ret ? hide_uobject(uobj, 0) : destroyed(uobj);
}

/*
 * Records the objects of the uobject layer that are older than the hooks: RDMA netlink does not list them. The
 * owner is the owner of the first process that has the file open.
 */

#define UOBJECTS_OF_FILE 65536

/* Files whose list of objects changed during the walk. */
__u64 walks_cut;

struct walk {
	__u64 head;
	struct list_head *at;
	struct owner owner;
};

static long adopt_uobject(__u32 i, struct walk *w)
{
	struct list_head *at = w->at;
	struct ib_device *device;
	struct ib_uobject *uobj;
	struct object o = {};
	__u64 address;
	int type;

	if (!at || (__u64)at == w->head)
		return 1;
	w->at = BPF_CORE_READ(at, next);
	if (w->at == at) { /* it was taken from the list */
		__sync_fetch_and_add(&walks_cut, 1);
		return 1;
	}
	uobj = (struct ib_uobject *)((void *)at - bpf_core_field_offset(struct ib_uobject, list));
	address = (__u64)uobj;
	device = BPF_CORE_READ(uobj, context, device);
	if (!device || bpf_map_lookup_elem(&objects, &address))
		return 0;
	type = uobject_type(BPF_CORE_READ(uobj, uapi_object, id), BPF_CORE_READ(device, ops.driver_id));
	if (type < 0)
		return 0;
	o.type = type;
	o.cgroup = w->owner.cgroup;
	o.owner = w->owner.share;
	remember(address, &o, device, 0);
	/*
	 * The kernel takes an object from the list before the hook of its end runs, which may have been before
	 * this.
	 */
	if (BPF_CORE_READ(at, next) == at)
		destroyed(address);
	return 0;
}

SEC("iter/task_file")
int adopt_uobjects(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct ib_uverbs_file *uverbs_file;
	struct walk w = {};

	if (!task || !file)
		return 0;
	if (!is_uverbs(BPF_CORE_READ(file, f_inode, i_rdev)))
		return 0;
	uverbs_file = BPF_CORE_READ(file, private_data);
	if (!uverbs_file)
		return 0;
	w.head = (__u64)uverbs_file + bpf_core_field_offset(struct ib_uverbs_file, uobjects);
	w.at = BPF_CORE_READ(uverbs_file, uobjects.next);
	owner_of(task, cgroup_of(task), &w.owner);
	bpf_loop(UOBJECTS_OF_FILE, adopt_uobject, &w, 0);
	return 0;
}

/*
 * GPUDirect: a thread maps a dma-buf and then makes a memory region of it. The exporter of the buffer shows which
 * device has the memory.
 */

static __always_inline bool begins(const char *name, const char *with, int n)
{
	for (int i = 0; i < n; i++)
		if (name[i] != with[i])
			return false;
	return true;
}

static __always_inline __u32 exporter_memory(struct ib_umem_dmabuf *umem)
{
	struct module *owner = BPF_CORE_READ(umem, attach, dmabuf, owner);
	char name[8] = {};

	if (!owner) /* built into the kernel */
		return MEMORY_DMABUF;
	if (bpf_core_read(name, sizeof(name), &owner->name))
		return MEMORY_UNKNOWN;
	if (begins(name, "nvidia", 6) || begins(name, "amdgpu", 7) || begins(name, "i915", 5) ||
	    begins(name, "xe", 3) || begins(name, "habanala", 8))
		return MEMORY_GPU;
	return MEMORY_DMABUF;
}

/* include/linux/err.h */
#define MAX_ERRNO 4095

/* IS_ERR: whether a function that returns a pointer returned an error */
static __always_inline bool is_error(const void *pointer)
{
	return (__u64)pointer >= (__u64)-MAX_ERRNO;
}

static __always_inline int set_mapping(const struct mapping *mapping)
{
	__u32 tid = bpf_get_current_pid_tgid();

	bpf_map_update_elem(&mappings, &tid, mapping, BPF_ANY);
	return 0;
}

static __always_inline int no_mapping(void)
{
	__u32 tid = bpf_get_current_pid_tgid();

	bpf_map_delete_elem(&mappings, &tid);
	return 0;
}

static __always_inline int mapped(struct ib_umem_dmabuf *umem, __u64 bytes)
{
	struct mapping mapping = {.umem = (__u64)umem, .bytes = bytes};

	if (is_error(umem))
		return no_mapping();
	mapping.memory = exporter_memory(umem);
	return set_mapping(&mapping);
}

/* Kretprobes do not see arguments, and the return may be missed: until the return, the exporter is unknown. */
static __always_inline int mapping_begins(__u64 bytes)
{
	struct mapping mapping = {.bytes = bytes, .memory = MEMORY_UNKNOWN};

	return set_mapping(&mapping);
}

static __always_inline int mapping_ends(struct ib_umem_dmabuf *umem)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct mapping *mapping = bpf_map_lookup_elem(&mappings, &tid);

	return mapped(umem, mapping ? mapping->bytes : 0);
}

/* The mapping ends without a region. */
static __always_inline int unmapped(__u64 umem)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct mapping *mapping = bpf_map_lookup_elem(&mappings, &tid);

	if (mapping && mapping->umem == umem)
		bpf_map_delete_elem(&mappings, &tid);
	return 0;
}

/*
 * The functions that map a dma-buf for a driver. If they call each other, as ib_umem_dmabuf_get_pinned does on 6.1,
 * they return the same umem.
 */

SEC("fexit/ib_umem_dmabuf_get")
int BPF_PROG(fexit_dmabuf_get, void *device, unsigned long offset, unsigned long size, int fd, int access, void *ops,
	     struct ib_umem_dmabuf *ret)
{
	return mapped(ret, size);
}

SEC("fexit/ib_umem_dmabuf_get_pinned")
int BPF_PROG(fexit_dmabuf_get_pinned, void *device, unsigned long offset, unsigned long size, int fd, int access,
	     struct ib_umem_dmabuf *ret)
{
	return mapped(ret, size);
}

SEC("fexit/ib_umem_dmabuf_get_pinned_with_dma_device")
int BPF_PROG(fexit_dmabuf_get_pinned_with_dma_device, void *device, void *dma_device, unsigned long offset,
	     unsigned long size, int fd, int access, struct ib_umem_dmabuf *ret)
{
	return mapped(ret, size);
}

SEC("fexit/ib_umem_dmabuf_get_pinned_revocable_and_lock")
int BPF_PROG(fexit_dmabuf_get_pinned_revocable_and_lock, void *device, unsigned long offset, unsigned long size, int fd,
	     int access, struct ib_umem_dmabuf *ret)
{
	return mapped(ret, size);
}

SEC("fentry/ib_umem_release")
int BPF_PROG(fentry_umem_release, void *umem)
{
	return unmapped((__u64)umem);
}

SEC("kprobe/ib_umem_dmabuf_get")
int BPF_KPROBE(kprobe_dmabuf_get, void *device, unsigned long offset, unsigned long size)
{
	return mapping_begins(size);
}

SEC("kretprobe/ib_umem_dmabuf_get")
int BPF_KRETPROBE(kretprobe_dmabuf_get, struct ib_umem_dmabuf *ret)
{
	return mapping_ends(ret);
}

SEC("kprobe/ib_umem_dmabuf_get_pinned")
int BPF_KPROBE(kprobe_dmabuf_get_pinned, void *device, unsigned long offset, unsigned long size)
{
	return mapping_begins(size);
}

SEC("kretprobe/ib_umem_dmabuf_get_pinned")
int BPF_KRETPROBE(kretprobe_dmabuf_get_pinned, struct ib_umem_dmabuf *ret)
{
	return mapping_ends(ret);
}

SEC("kprobe/ib_umem_dmabuf_get_pinned_with_dma_device")
int BPF_KPROBE(kprobe_dmabuf_get_pinned_with_dma_device, void *device, void *dma_device, unsigned long offset,
	       unsigned long size)
{
	return mapping_begins(size);
}

SEC("kretprobe/ib_umem_dmabuf_get_pinned_with_dma_device")
int BPF_KRETPROBE(kretprobe_dmabuf_get_pinned_with_dma_device, struct ib_umem_dmabuf *ret)
{
	return mapping_ends(ret);
}

SEC("kprobe/ib_umem_dmabuf_get_pinned_revocable_and_lock")
int BPF_KPROBE(kprobe_dmabuf_get_pinned_revocable_and_lock, void *device, unsigned long offset, unsigned long size)
{
	return mapping_begins(size);
}

SEC("kretprobe/ib_umem_dmabuf_get_pinned_revocable_and_lock")
int BPF_KRETPROBE(kretprobe_dmabuf_get_pinned_revocable_and_lock, struct ib_umem_dmabuf *ret)
{
	return mapping_ends(ret);
}

SEC("kprobe/ib_umem_release")
int BPF_KPROBE(kprobe_umem_release, void *umem)
{
	return unmapped((__u64)umem);
}

/*
 * Memory that the process cannot pin and that a peer memory client, such as nvidia_peermem, maps. In MLNX_OFED and
 * DOCA-OFED ib_umem_get_peer calls this function after it failed to pin the pages.
 */

static __always_inline int peer_mapped(void *umem)
{
	struct mapping mapping = {.umem = (__u64)umem, .memory = MEMORY_GPU};

	return is_error(umem) ? no_mapping() : set_mapping(&mapping);
}

SEC("fexit/ib_peer_umem_get")
int BPF_PROG(fexit_peer_umem_get, void *old_umem, int old_ret, unsigned long peer_mem_flags, void *ret)
{
	return peer_mapped(ret);
}

SEC("kprobe/ib_peer_umem_get")
int kprobe_peer_umem_get(struct pt_regs *ctx)
{
	return mapping_begins(0);
}

SEC("kretprobe/ib_peer_umem_get")
int BPF_KRETPROBE(kretprobe_peer_umem_get, void *ret)
{
	return peer_mapped(ret);
}
