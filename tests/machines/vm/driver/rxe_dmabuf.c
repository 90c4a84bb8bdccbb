// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0

// Memory regions of dma-bufs and of peer memory for rxe, which lacks them: a part of the module that BuildDMABuf builds
// for the guest. The region of a dma-buf is made like a region of a process's memory, by reg_user_mr, which gets its
// pages from rxe_umem_get.

#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <rdma/ib_umem.h>
#include <rdma/uverbs_ioctl.h>

#include "rxe_dmabuf.h"

// The function that maps the dma-buf.
static char dmabuf_function[64] = "ib_umem_dmabuf_get";
module_param_string(dmabuf_function, dmabuf_function, sizeof(dmabuf_function), 0644);

// Whether the driver sets ib_mr.length, as mlx5 does, unlike irdma, bnxt_re and mana. A region without length refuses
// all access.
static bool dmabuf_length = true;
module_param(dmabuf_length, bool, 0644);

// The registration in progress, by one thread at a time.
static DEFINE_MUTEX(registration);
static struct task_struct *registering;
static int dmabuf_fd;

// A device like in drivers of hardware: rxe's own lacks dma_device, because it reaches memory by the CPU.
static struct ib_device mapper;

static void move_notify(struct dma_buf_attachment *attachment)
{
}

static const struct dma_buf_attach_ops attach_ops = {.allow_peer2peer = true, .move_notify = move_notify};

static void revoked(void *umem)
{
}

static struct ib_umem_dmabuf *map_dmabuf(u64 offset, u64 length, int access)
{
	struct ib_umem_dmabuf *umem;
	int err;

	if (sysfs_streq(dmabuf_function, "ib_umem_dmabuf_get_pinned"))
		return ib_umem_dmabuf_get_pinned(&mapper, offset, length, dmabuf_fd, access);
	if (sysfs_streq(dmabuf_function, "ib_umem_dmabuf_get_pinned_with_dma_device"))
		return ib_umem_dmabuf_get_pinned_with_dma_device(&mapper, mapper.dma_device, offset, length, dmabuf_fd,
								 access);
	if (sysfs_streq(dmabuf_function, "ib_umem_dmabuf_get_pinned_revocable_and_lock")) {
		umem = ib_umem_dmabuf_get_pinned_revocable_and_lock(&mapper, offset, length, dmabuf_fd, access);
		if (!IS_ERR(umem)) {
			ib_umem_dmabuf_set_revoke_locked(umem, revoked, umem);
			ib_umem_dmabuf_revoke_unlock(umem);
		}
		return umem;
	}
	if (!sysfs_streq(dmabuf_function, "ib_umem_dmabuf_get"))
		return ERR_PTR(-EINVAL);
	umem = ib_umem_dmabuf_get(&mapper, offset, length, dmabuf_fd, access, &attach_ops);
	if (IS_ERR(umem))
		return umem;
	dma_resv_lock(umem->attach->dmabuf->resv, NULL);
	err = ib_umem_dmabuf_map_pages(umem);
	dma_resv_unlock(umem->attach->dmabuf->resv);
	if (!err)
		return umem;
	ib_umem_release(&umem->umem);
	return ERR_PTR(err);
}

// Peer memory: in MLNX_OFED and DOCA-OFED, ib_umem_get_peer asks the registered clients, such as nvidia_peermem, for
// memory that it cannot pin. These functions have the same names, arguments and results. The only client here has the
// memory that a DRM driver maps into the process.
noinline void *ib_register_peer_memory_client(const void *client, void *invalidate)
{
	return ERR_PTR(-EBUSY);
}

// client_pages gets the pages of a range from the client, pinned as ib_umem_release expects it.
static int client_pages(struct page **pages, unsigned long address, unsigned long n)
{
	struct mm_struct *mm = current->mm;
	unsigned long i;
	int err = 0;

	mmap_read_lock(mm);
	for (i = 0; i < n && !err; i++, address += PAGE_SIZE) {
		struct follow_pfnmap_args args = {.vma = vma_lookup(mm, address), .address = address};

		if (!args.vma || !(args.vma->vm_flags & VM_PFNMAP)) {
			err = -EFAULT;
			break;
		}
		err = follow_pfnmap_start(&args);
		if (err)
			break;
		pages[i] = pfn_to_page(args.pfn);
		page_ref_add(pages[i], GUP_PIN_COUNTING_BIAS);
		follow_pfnmap_end(&args);
	}
	mmap_read_unlock(mm);
	if (err)
		unpin_user_pages(pages, i);
	return err;
}

noinline struct ib_umem *ib_peer_umem_get(struct ib_umem *old_umem, int old_ret, unsigned long peer_mem_flags)
{
	unsigned long n = ib_umem_num_pages(old_umem);
	struct page **pages = kvmalloc_array(n, sizeof(*pages), GFP_KERNEL);
	struct ib_umem *umem = kmemdup(old_umem, sizeof(*old_umem), GFP_KERNEL);
	int err = pages && umem ? 0 : -ENOMEM;

	if (!err && client_pages(pages, ALIGN_DOWN(umem->address, PAGE_SIZE), n))
		err = old_ret;
	if (!err) {
		err = sg_alloc_append_table_from_pages(&umem->sgt_append, pages, n, 0, n << PAGE_SHIFT, UINT_MAX, 0,
						       GFP_KERNEL);
		if (err)
			unpin_user_pages(pages, n);
	}
	kvfree(pages);
	if (err) {
		kfree(umem);
		return ERR_PTR(err);
	}
	umem->sgt_append.sgt.nents = umem->sgt_append.sgt.orig_nents;
	mmgrab(umem->owning_mm);
	atomic64_add(n, &umem->owning_mm->pinned_vm);
	return umem;
}

static struct ib_umem *ib_umem_get_peer(struct ib_device *device, u64 start, u64 length, int access)
{
	struct ib_umem *umem = ib_umem_get(device, start, length, access);
	struct ib_umem old = {
		.ibdev = device,
		.owning_mm = current->mm,
		.iova = start,
		.length = length,
		.address = start,
		.writable = 1,
	};

	return IS_ERR(umem) ? ib_peer_umem_get(&old, PTR_ERR(umem), 0) : umem;
}

struct ib_umem *rxe_umem_get(struct ib_device *device, u64 start, u64 length, int access)
{
	struct ib_umem_dmabuf *dmabuf;

	if (READ_ONCE(registering) != current)
		return ib_umem_get_peer(device, start, length, access);
	mapper.dma_device = &device->dev;
	dmabuf = map_dmabuf(start, length, access);
	if (IS_ERR(dmabuf))
		return ERR_CAST(dmabuf);
	// rxe takes all pages of the list.
	if (start || PAGE_ALIGN(length) != dmabuf->attach->dmabuf->size) {
		ib_umem_release(&dmabuf->umem);
		return ERR_PTR(-EOPNOTSUPP);
	}
	dmabuf->umem.ibdev = device;
	dmabuf->umem.sgt_append.sgt.orig_nents = dmabuf->umem.sgt_append.sgt.nents;
	return &dmabuf->umem;
}

struct ib_mr *rxe_reg_user_mr_dmabuf(struct ib_pd *pd, u64 offset, u64 length, u64 iova, int fd, int access,
				     struct uverbs_attr_bundle *attrs)
{
	struct ib_mr *mr;
	int err = 0;

	mutex_lock(&registration);
	if (!pd->device->dev.dma_mask)
		err = dma_coerce_mask_and_coherent(&pd->device->dev, DMA_BIT_MASK(64));
	if (err) {
		mutex_unlock(&registration);
		return ERR_PTR(err);
	}
	dmabuf_fd = fd;
	WRITE_ONCE(registering, current);
	mr = pd->device->ops.reg_user_mr(pd, offset, length, iova, access, &attrs->driver_udata);
	WRITE_ONCE(registering, NULL);
	mutex_unlock(&registration);
	if (IS_ERR(mr))
		return mr;
	mr->iova = iova;
	if (dmabuf_length)
		mr->length = length;
	return mr;
}
