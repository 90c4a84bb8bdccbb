#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""extended DEVICE COUNT SIZE [hold | unread]: sends between two queue pairs of one process with pyverbs, whose completion queue is an
extended one (pyverbs.cq.CQEX: ibv_start_poll, ibv_wc_read_*, ibv_end_poll). Prints what it posted and what it read, as posts does.
hold: waits for the end of standard input then. unread: so, too, and does not read the lengths of completions."""
import sys

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQEX, CqInitAttrEx, PollCqAttr
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

GID = 1  # index of the address of version 4
EMPTY = 2  # ENOENT, which ibv_start_poll returns for an empty queue


def connect(qp, to, gid):
    attr = QPAttr(port_num=1)
    attr.dest_qp_num = to.qp_num
    attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=gid, sgid_index=GID))
    attr.path_mtu, attr.max_rd_atomic, attr.max_dest_rd_atomic = e.IBV_MTU_1024, 1, 1
    attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
    qp.to_rts(attr)


def completion(cq, read_length):
    """Waits for one completion and returns its opcode and length, 0 if that is not read."""
    while (status := cq.start_poll(PollCqAttr())) == EMPTY:
        pass
    if status or cq.status != e.IBV_WC_SUCCESS:
        sys.exit(f"start_poll: {status}, completion: {cq.status}")
    cq.read_qp_num()
    opcode, length = cq.read_opcode(), cq.read_byte_len() if read_length else 0
    cq.end_poll()
    return opcode, length


def main():
    device, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    mode = sys.argv[4] if len(sys.argv) > 4 else ""
    context = Context(name=device)
    gid = context.query_gid(1, GID)
    pd = PD(context)
    cq = CQEX(context, CqInitAttrEx(cqe=256, wc_flags=e.IBV_WC_STANDARD_FLAGS))
    mr = MR(pd, size, e.IBV_ACCESS_LOCAL_WRITE)
    init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_send_wr=16, max_recv_wr=16))
    a, b = QP(pd, init, QPAttr()), QP(pd, init, QPAttr())
    connect(a, b, gid)
    connect(b, a, gid)
    sge = SGE(mr.buf, size, mr.lkey)
    sent = received = length = 0
    for _ in range(count):
        b.post_recv(RecvWR(num_sge=1, sg=[sge]))
        a.post_send(SendWR(num_sge=1, sg=[sge], opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED))
        for opcode, size_of in [completion(cq, mode != "unread") for _ in range(2)]:
            if opcode == e.IBV_WC_RECV:
                received, length = received + 1, length + size_of
            else:
                sent += 1
    print("posted", sent, sent * size)
    print("receives", count, received, length)
    if mode:
        print("done", flush=True)
        sys.stdin.read()


main()
