/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */

#ifndef RXE_DMABUF_H
#define RXE_DMABUF_H

#include <rdma/ib_verbs.h>

void *ib_register_peer_memory_client(const void *client, void *invalidate);
struct ib_umem *ib_peer_umem_get(struct ib_umem *old_umem, int old_ret, unsigned long peer_mem_flags);
struct ib_umem *rxe_umem_get(struct ib_device *device, u64 start, u64 length, int access);
struct ib_mr *rxe_reg_user_mr_dmabuf(struct ib_pd *pd, u64 offset, u64 length, u64 iova, int fd, int access,
				     struct uverbs_attr_bundle *attrs);

#endif
