// SPDX-License-Identifier: Apache-2.0

package model

// The counters with one name for all drivers.
const (
	TransmitBytes    = "transmit_bytes"
	ReceiveBytes     = "receive_bytes"
	TransmitPackets  = "transmit_packets"
	ReceivePackets   = "receive_packets"
	TransmitErrors   = "transmit_errors"
	ReceiveErrors    = "receive_errors"
	TransmitDiscards = "transmit_discards"
	ReceiveDiscards  = "receive_discards"

	ECNMarked               = "ecn_marked"
	CNPSent                 = "cnp_sent"
	CNPHandled              = "cnp_handled"
	OutOfSequence           = "out_of_sequence"
	Retransmitted           = "retransmitted"
	Timeouts                = "timeouts"
	RNR                     = "rnr"
	OutOfBuffer             = "out_of_buffer"
	AdaptiveRetransmissions = "adaptive_retransmissions"
	SlowRestart             = "slow_restart"
)

// SharedCounters is the number of these counters.
const SharedCounters = 18

// driverCounters lists the drivers' names of each counter, in hw_counters unless the name has another directory. No two
// drivers use one name for two counters, so the name alone is the key; bnxt_re and irdma renamed their counters. If a
// driver has several names of a counter, the first in this table counts. Names are added up (+) only if they share no
// event, and all must exist: a missing part would look like a reset.
//
// The sources are files below drivers/infiniband, with the kernel release that was read. docs/links.md has the table by
// driver. ionic's names come from its firmware, as AMD's tools list them. Errors of ports with counters/ are in
// PMACounters.
//
// Left out are:
//   - packet_seq_err, seq_err_naks_rcvd, implied_nak_seq_err, Nak Sequence Error: the sender's view of what the remote end counts,
//   - rx_drops of efa as OutOfBuffer: drops of any cause,
//   - rdma_tx_bytes, rdma_rx_bytes, packets, cc_rx_ce_pkts, cc_rx_cnp_pkts, cc_tx_cnp_pkts of mlx5: optional counters,
//   - vport_* of mlx5 in switchdev mode: counters of the VFs behind a representor,
//   - tx_roce_only_bytes, rx_roce_only_bytes, rx_roce_good_bytes of bnxt_re: VFs lack them,
//   - impaired_remote_conn_events, unresponsive_remote_events of efa: events of connections, not of packets,
//   - roce_adp_retrans_to, roce_slow_restart_cnps, roce_slow_restart_trans: details of counters in the table,
//   - DcRcvFcn, DcRcvBcn of hfi1: Omni-Path has no ECN and no CNP.
var driverCounters = [...]struct{ counter, name string }{
	{ECNMarked, "np_ecn_marked_roce_packets"}, // hw/mlx5/counters.c 6.1; hw/bnxt_re/hw_counters.c 7.2
	{ECNMarked, "rx_ecn_marked_pkts"},         // hw/bnxt_re/hw_counters.c 6.12
	{ECNMarked, "RxECNMrkd"},                  // hw/irdma/verbs.c 6.1
	{ECNMarked, "received_ecns"},              // hw/mana/counters.c 7.2, of the device
	{ECNMarked, "rx_rdma_ecn_pkts"},           // ionic: hw/ionic/ionic_hw_stats.c 7.2, firmware

	{CNPSent, "np_cnp_sent"},      // hw/mlx5/counters.c 6.1
	{CNPSent, "tx_cnp_pkts"},      // hw/bnxt_re/hw_counters.c 6.12
	{CNPSent, "np_cnp_pkts"},      // hw/bnxt_re/hw_counters.c 7.2
	{CNPSent, "cnpSent"},          // hw/irdma/verbs.c 6.1
	{CNPSent, "sent_cnps"},        // hw/mana/counters.c 7.2, of the device
	{CNPSent, "tx_cnp_pkt"},       // hw/hns/hns_roce_main.c 6.12
	{CNPSent, "tx_rdma_cnp_pkts"}, // ionic 7.2, firmware

	{CNPHandled, "rp_cnp_handled"},   // hw/mlx5/counters.c 6.1; hw/bnxt_re/hw_counters.c 7.2: received
	{CNPHandled, "rx_cnp_pkts"},      // hw/bnxt_re/hw_counters.c 6.12: received
	{CNPHandled, "cnpHandled"},       // hw/irdma/verbs.c 6.1
	{CNPHandled, "received_cnps"},    // hw/mana/counters.c 7.2: received
	{CNPHandled, "rx_cnp_pkt"},       // hw/hns/hns_roce_main.c 6.12: received
	{CNPHandled, "rx_rdma_cnp_pkts"}, // ionic 7.2, firmware: received

	{OutOfSequence, "out_of_sequence"},           // hw/mlx5/counters.c 6.1; hw/bnxt_re/hw_counters.c 7.2
	{OutOfSequence, "oos_drop_count"},            // hw/bnxt_re/hw_counters.c 6.1
	{OutOfSequence, "Rcvd Out of order packets"}, // hw/irdma/verbs.c 7.2
	{OutOfSequence, "responder_oos"},             // hw/mana/counters.c 7.2
	{OutOfSequence, "rq_num_oos"},                // hw/mlx4/main.c 6.1
	{OutOfSequence, "RcSeqNak"},                  // hw/hfi1/chip.c, rc.c 6.1: NAKs sent for a gap
	{OutOfSequence, "out_of_seq_request"},        // sw/rxe/rxe_hw_counters.c 6.1
	{OutOfSequence, "resp_rx_outouf_seq"},        // ionic 7.2, firmware, which spells it so

	{Retransmitted, "tcpRetransSegs"},      // hw/irdma/verbs.c 6.1: segments, also of RoCE
	{Retransmitted, "RetransSegs"},         // hw/irdma/verbs.c 7.2
	{Retransmitted, "retrans_pkts"},        // hw/efa/efa_verbs.c 7.2
	{Retransmitted, "RcResend"},            // hw/hfi1/chip.c, rc.c 6.1: packets, of a read its request
	{Retransmitted, "completer_retry_err"}, // sw/rxe/rxe_comp.c 6.1: times that sending starts again
	{Retransmitted, "tx_rdma_retx_pkts"},   // ionic 7.2, firmware

	{Timeouts, "local_ack_timeout_err"},  // hw/mlx5/counters.c 6.1; hw/bnxt_re/hw_counters.c 7.2
	{Timeouts, "to_retransmits"},         // hw/bnxt_re/hw_counters.c 6.1
	{Timeouts, "RTO"},                    // hw/irdma/verbs.c 7.2
	{Timeouts, "retrans_timeout_events"}, // hw/efa/efa_verbs.c 7.2
	{Timeouts, "requester_timeout"},      // hw/mana/counters.c 7.2
	{Timeouts, "sq_num_to"},              // hw/mlx4/main.c 6.1
	{Timeouts, "RcTimeOut"},              // hw/hfi1/chip.c 6.1
	{Timeouts, "tx_rdma_ack_timeout"},    // ionic 7.2, firmware

	{RNR, "rnr_nak_retry_err"}, // hw/mlx5/counters.c 6.1; hw/bnxt_re/hw_counters.c 7.2
	{RNR, "rnr_naks_rcvd"},     // hw/bnxt_re/hw_counters.c 6.1
	{RNR, "RNR received"},      // hw/irdma/verbs.c 7.2
	{RNR, "requester_rnr_nak"}, // hw/mana/counters.c 7.2
	{RNR, "sq_num_rnr"},        // hw/mlx4/main.c 6.1
	{RNR, "RnrNak"},            // hw/hfi1/chip.c, rc.c 6.1
	{RNR, "rcvd_rnr_err"},      // sw/rxe/rxe_hw_counters.c 6.1

	{OutOfBuffer, "out_of_buffer"},     // hw/mlx5/counters.c 6.1; hw/bnxt_re/hw_counters.c 7.2: packets
	{OutOfBuffer, "rx_out_of_buffer"},  // hw/bnxt_re/hw_counters.c 6.1: packets
	{OutOfBuffer, "RNR sent"},          // hw/irdma/verbs.c 7.2: RNR NAKs sent
	{OutOfBuffer, "responder_rnr_nak"}, // hw/mana/counters.c 7.2: RNR NAKs sent
	{OutOfBuffer, "rq_num_rnr"},        // hw/mlx4/main.c 6.1: RNR NAKs sent
	{OutOfBuffer, "send_rnr_err"},      // sw/rxe/rxe_hw_counters.c 6.1: RNR NAKs sent
	{OutOfBuffer, "resp_rx_outof_buf"}, // ionic 7.2, firmware: packets

	{AdaptiveRetransmissions, "roce_adp_retrans"}, // hw/mlx5/counters.c 6.1
	{SlowRestart, "roce_slow_restart"},            // hw/mlx5/counters.c 6.1

	{TransmitBytes, "counters_ext/port_xmit_data_64"},            // mlx4, mlx5 of MLNX_OFED for kernels before 4.5: words
	{TransmitBytes, "counters/port_xmit_data"},                   // core/sysfs.c 6.12: words; which drivers: docs/links.md
	{TransmitBytes, "tx_bytes"},                                  // efa_verbs.c 6.1; hw/bnxt_re/hw_counters.c 6.1; hw/mana/counters.c 7.2
	{TransmitBytes, "ip4OutOctets + ip6OutOctets"},               // hw/irdma/verbs.c 6.1; hw/i40iw/i40iw_verbs.c 5.10
	{TransmitBytes, "tx_rdma_ucast_bytes + tx_rdma_mcast_bytes"}, // ionic 7.2, firmware
	{TransmitBytes, "tx_rdma_ucast_bytes"},                       // ionic 7.2, firmware without multicast
	{TransmitBytes, "tx_bytes_cnt"},                              // hw/erdma/erdma_verbs.c 6.12
	{TransmitBytes, "hw_tx_bytes_cnt"},                           // erdma of Alibaba
	{TransmitBytes, "sent_bytes"},                                // sw/rxe/rxe_hw_counters.c 7.2

	{ReceiveBytes, "counters_ext/port_rcv_data_64"},             // as above
	{ReceiveBytes, "counters/port_rcv_data"},                    // core/sysfs.c 6.12: words
	{ReceiveBytes, "rx_bytes"},                                  // efa_verbs.c 6.1; hw/bnxt_re/hw_counters.c 6.1; hw/mana/counters.c 7.2
	{ReceiveBytes, "ip4InOctets + ip6InOctets"},                 // hw/irdma/verbs.c 6.1
	{ReceiveBytes, "rx_rdma_ucast_bytes + rx_rdma_mcast_bytes"}, // ionic 7.2, firmware
	{ReceiveBytes, "rx_rdma_ucast_bytes"},                       // ionic 7.2, firmware without multicast
	{ReceiveBytes, "rx_bytes_cnt"},                              // hw/erdma/erdma_verbs.c 6.12
	{ReceiveBytes, "hw_rx_bytes_cnt"},                           // erdma of Alibaba
	{ReceiveBytes, "rcvd_bytes"},                                // sw/rxe/rxe_hw_counters.c 7.2

	{TransmitPackets, "counters_ext/port_xmit_packets_64"},       // as above
	{TransmitPackets, "counters/port_xmit_packets"},              // core/sysfs.c 6.12
	{TransmitPackets, "tx_pkts"},                                 // hw/efa/efa_verbs.c 6.1; hw/bnxt_re/hw_counters.c 6.1
	{TransmitPackets, "tx_packets"},                              // hw/mana/counters.c 7.2
	{TransmitPackets, "ip4OutPkts + ip6OutPkts"},                 // hw/irdma/verbs.c 6.1
	{TransmitPackets, "tx_rdma_ucast_pkts + tx_rdma_mcast_pkts"}, // ionic 7.2, firmware
	{TransmitPackets, "tx_rdma_ucast_pkts"},                      // ionic 7.2, firmware without multicast
	{TransmitPackets, "tx_packets_cnt"},                          // hw/erdma/erdma_verbs.c 6.12
	{TransmitPackets, "hw_tx_packets_cnt"},                       // erdma of Alibaba
	{TransmitPackets, "tx_pkt"},                                  // hw/hns/hns_roce_main.c 6.12
	{TransmitPackets, "sent_pkts"},                               // sw/rxe/rxe_hw_counters.c 6.1

	{ReceivePackets, "counters_ext/port_rcv_packets_64"},        // as above
	{ReceivePackets, "counters/port_rcv_packets"},               // core/sysfs.c 6.12
	{ReceivePackets, "rx_pkts"},                                 // hw/efa/efa_verbs.c 6.1; hw/bnxt_re/hw_counters.c 6.1
	{ReceivePackets, "rx_packets"},                              // hw/mana/counters.c 7.2
	{ReceivePackets, "ip4InPkts + ip6InPkts"},                   // hw/irdma/verbs.c 6.1
	{ReceivePackets, "rx_rdma_ucast_pkts + rx_rdma_mcast_pkts"}, // ionic 7.2, firmware
	{ReceivePackets, "rx_rdma_ucast_pkts"},                      // ionic 7.2, firmware without multicast
	{ReceivePackets, "rx_packets_cnt"},                          // hw/erdma/erdma_verbs.c 6.12
	{ReceivePackets, "hw_rx_packets_cnt"},                       // erdma of Alibaba
	{ReceivePackets, "rx_pkt"},                                  // hw/hns/hns_roce_main.c 6.12
	{ReceivePackets, "rcvd_pkts"},                               // sw/rxe/rxe_hw_counters.c 6.1

	{TransmitErrors, "tx_roce_errors"}, // hw/bnxt_re/hw_counters.c 6.12
	{TransmitErrors, "tx_err_pkt"},     // hw/hns/hns_roce_main.c 6.12
	{TransmitErrors, "send_err"},       // sw/rxe/rxe_hw_counters.c 6.1

	{ReceiveErrors, "rx_roce_errors"}, // hw/bnxt_re/hw_counters.c 6.1
	{ReceiveErrors, "rx_err_pkt"},     // hw/hns/hns_roce_main.c 6.12

	{TransmitDiscards, "tx_roce_discards"},                                                    // hw/bnxt_re/hw_counters.c 6.12
	{TransmitDiscards, "tx_disable_drop_cnt + tx_bps_limit_drop_cnt + tx_pps_limit_drop_cnt"}, // hw/erdma/erdma_verbs.c 6.12
	{TransmitDiscards, "hw_disable_drop_cnt + hw_bps_limit_drop_cnt + hw_pps_limit_drop_cnt"}, // erdma of Alibaba

	{ReceiveDiscards, "rx_drops"},                                                                     // hw/efa/efa_verbs.c 6.1
	{ReceiveDiscards, "rx_roce_discards"},                                                             // hw/bnxt_re/hw_counters.c 6.1
	{ReceiveDiscards, "ip4InDiscards + ip6InDiscards"},                                                // hw/irdma/verbs.c 6.1
	{ReceiveDiscards, "rx_rdma_mtu_discard_pkts"},                                                     // ionic 7.2, firmware
	{ReceiveDiscards, "rx_disable_drop_cnt + rx_bps_limit_drop_cnt + rx_pps_limit_drop_cnt"},          // hw/erdma/erdma_verbs.c 6.12
	{ReceiveDiscards, "hw_rx_disable_drop_cnt + hw_rx_bps_limit_drop_cnt + hw_rx_pps_limit_drop_cnt"}, // erdma of Alibaba
}
