// SPDX-License-Identifier: Apache-2.0

// Prints where rdma-core's own header has what we read of a process.
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdio.h>

#define SAY(name, type, member) printf("%s %zu\n", name, offsetof(struct type, member))

int main(void)
{
	SAY("context", ibv_qp, context);
	SAY("0", ibv_context, ops.post_send);
	SAY("1", ibv_context, ops.post_recv);
	SAY("2", ibv_context, ops.poll_cq);
	SAY("3", ibv_qp_ex, wr_atomic_cmp_swp);
	SAY("4", ibv_qp_ex, wr_atomic_fetch_add);
	SAY("5", ibv_qp_ex, wr_bind_mw);
	SAY("6", ibv_qp_ex, wr_local_inv);
	SAY("7", ibv_qp_ex, wr_rdma_read);
	SAY("8", ibv_qp_ex, wr_rdma_write);
	SAY("9", ibv_qp_ex, wr_rdma_write_imm);
	SAY("10", ibv_qp_ex, wr_send);
	SAY("11", ibv_qp_ex, wr_send_imm);
	SAY("12", ibv_qp_ex, wr_send_inv);
	SAY("13", ibv_qp_ex, wr_send_tso);
	SAY("14", ibv_qp_ex, wr_set_inline_data);
	SAY("15", ibv_qp_ex, wr_set_inline_data_list);
	SAY("16", ibv_qp_ex, wr_set_sge);
	SAY("17", ibv_qp_ex, wr_set_sge_list);
	SAY("18", ibv_qp_ex, wr_start);
	SAY("19", ibv_qp_ex, wr_complete);
	SAY("20", ibv_qp_ex, wr_abort);
	return 0;
}
