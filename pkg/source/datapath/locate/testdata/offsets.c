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
	SAY("3", ibv_context, ops.post_srq_recv);
	SAY("4", ibv_qp_ex, wr_atomic_cmp_swp);
	SAY("5", ibv_qp_ex, wr_atomic_fetch_add);
	SAY("6", ibv_qp_ex, wr_bind_mw);
	SAY("7", ibv_qp_ex, wr_local_inv);
	SAY("8", ibv_qp_ex, wr_rdma_read);
	SAY("9", ibv_qp_ex, wr_rdma_write);
	SAY("10", ibv_qp_ex, wr_rdma_write_imm);
	SAY("11", ibv_qp_ex, wr_send);
	SAY("12", ibv_qp_ex, wr_send_imm);
	SAY("13", ibv_qp_ex, wr_send_inv);
	SAY("14", ibv_qp_ex, wr_send_tso);
	SAY("15", ibv_qp_ex, wr_set_inline_data);
	SAY("16", ibv_qp_ex, wr_set_inline_data_list);
	SAY("17", ibv_qp_ex, wr_set_sge);
	SAY("18", ibv_qp_ex, wr_set_sge_list);
	SAY("19", ibv_qp_ex, wr_start);
	SAY("20", ibv_qp_ex, wr_complete);
	SAY("21", ibv_qp_ex, wr_abort);
	SAY("22", ibv_qp_ex, wr_atomic_write);
	// Headers before version 45 lack wr_flush, which is the next member.
	printf("23 %zu\n", offsetof(struct ibv_qp_ex, wr_atomic_write) + sizeof(void *));
	SAY("send_cq", ibv_qp, send_cq);
	SAY("recv_cq", ibv_qp, recv_cq);
	SAY("cq_context", ibv_cq_ex, context);
	SAY("24", ibv_cq_ex, start_poll);
	SAY("25", ibv_cq_ex, next_poll);
	SAY("26", ibv_cq_ex, read_opcode);
	SAY("27", ibv_cq_ex, read_byte_len);
	SAY("28", ibv_cq_ex, read_qp_num);
	return 0;
}
