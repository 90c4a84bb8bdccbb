// SPDX-License-Identifier: Apache-2.0

package link

import "github.com/accelscope/accelscope/pkg/model"

// meaning is what a statistic of a driver counts.
type meaning int

const (
	receivedFrames      meaning = iota // pause frames
	sentFrames                         // pause frames
	receivedMicros                     // microseconds without sending, because of received pause frames
	sentMicros                         // microseconds in which the remote end did not send, because of sent pause frames
	storms                             // pause storms
	physicalDowns                      // losses of the physical link
	correctedBlocks                    // FEC
	uncorrectableBlocks                // FEC
	correctedBits                      // FEC
	readStalls                         // seconds in which reads over PCIe were stalled
	writeStalls                        // seconds in which writes over PCIe were stalled
	discards                           // received packets that were dropped for lack of room
)

// privateName is a name of `ethtool -S`. %d in it is a priority or traffic class from 0 to 7, which is the label, after
// this prefix. Discards of all priorities are added up.
type privateName struct {
	name    string
	meaning meaning
	label   string
}

// The types of pause storms.
const (
	stormWarning = "warning" // the port has sent pause for 85 % of the time after which it stops
	stormError   = "error"   // the port has sent pause for so long that it stopped
	stormLink    = "link"    // continuous pause
	stormRoCE    = "roce"    // continuous pause of RoCE traffic
)

// Where a received packet found no room.
const (
	discardPort       = "port_buffer"     // of the physical port
	discardHost       = "host_buffer"     // of the host, by priority
	discardCongestion = "host_congestion" // of a congested host, by priority
	discardPCIe       = "pcie_buffer"     // to PCIe, which was slower than the port
)

// privateNames are the statistics of drivers that standard interfaces lack, by the name of the driver. Names differ
// between kernels: each is used if the driver has it. Drivers without such statistics: irdma and erdma (the network
// interfaces belong to ice, i40e or idpf, and to the cloud's driver), ena and efa (allowances of the cloud, no pause of
// the link).
var privateNames = map[string][]privateName{
	// drivers/net/ethernet/mellanox/mlx5/core/en_stats.c: pport_per_prio_pfc_stats_desc (names of priorities with PFC
	// only), pport_pfc_stall_stats_desc, pport_phy_statistical_stats_desc, pport_phy_layer_cntrs; meaning and units:
	// Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst.
	"mlx5_core": {
		{"rx_prio%d_pause", receivedFrames, ""},
		{"tx_prio%d_pause", sentFrames, ""},
		{"rx_prio%d_pause_duration", receivedMicros, ""},
		{"tx_prio%d_pause_duration", sentMicros, ""},
		{"rx_global_pause", receivedFrames, model.GlobalPause},
		{"tx_global_pause", sentFrames, model.GlobalPause},
		{"rx_global_pause_duration", receivedMicros, model.GlobalPause},
		{"tx_global_pause_duration", sentMicros, model.GlobalPause},
		{"tx_pause_storm_warning_events", storms, stormWarning},
		{"tx_pause_storm_error_events", storms, stormError},
		{"link_down_events_phy", physicalDowns, ""},
		{"rx_corrected_bits_phy", correctedBits, ""},
		// pcie_perf_stall_stats_desc, pcie_perf_stats_desc64, pport_2863_stats_desc, pport_per_tc_prio_stats_desc.
		{"outbound_pci_stalled_rd_events", readStalls, ""},
		{"outbound_pci_stalled_wr_events", writeStalls, ""},
		{"outbound_pci_buffer_overflow", discards, discardPCIe},
		{"rx_discards_phy", discards, discardPort},
		{"rx_prio%d_buf_discard", discards, discardHost},
		{"rx_prio%d_cong_discard", discards, discardCongestion},
	},
	// drivers/net/ethernet/broadcom/bnxt/bnxt_ethtool.c: bnxt_port_stats_arr, bnxt_port_stats_ext_arr, bnxt_tx_port_stats_ext_arr.
	"bnxt_en": {
		{"rx_pfc_ena_frames_pri%d", receivedFrames, ""},
		{"tx_pfc_ena_frames_pri%d", sentFrames, ""},
		{"pfc_pri%d_rx_duration_us", receivedMicros, ""},
		{"pfc_pri%d_tx_duration_us", sentMicros, ""},
		{"rx_pause_frames", receivedFrames, model.GlobalPause},
		{"tx_pause_frames", sentFrames, model.GlobalPause},
		{"continuous_pause_events", storms, stormLink},
		{"continuous_roce_pause_events", storms, stormRoCE},
		{"link_down_events", physicalDowns, ""},
		{"rx_fec_corrected_blocks", correctedBlocks, ""},
		{"rx_fec_uncorrectable_blocks", uncorrectableBlocks, ""},
		{"rx_corrected_bits", correctedBits, ""},
		{"rx_discard_packets_cos%d", discards, discardPort},
	},
	// drivers/net/ethernet/intel/ice/ice_ethtool.c: ice_gstrings_pf_stats, and the names of priorities in
	// __ice_get_strings. A frame that ends a pause (xon) is not counted.
	"ice": {
		{"rx_priority_%d_xoff.nic", receivedFrames, ""},
		{"tx_priority_%d_xoff.nic", sentFrames, ""},
		{"link_xoff_rx.nic", receivedFrames, model.GlobalPause},
		{"link_xoff_tx.nic", sentFrames, model.GlobalPause},
		{"rx_dropped.nic", discards, discardPort},
	},
	// drivers/net/ethernet/pensando/ionic/ionic_stats.c: ionic_port_stats_desc. Frames are counted for all priorities together.
	"ionic": {
		{"frames_rx_pripause", receivedFrames, model.UnknownPause},
		{"frames_tx_pripause", sentFrames, model.UnknownPause},
		{"rx_pripause_%d_1us_count", receivedMicros, ""},
		{"tx_pripause_%d_1us_count", sentMicros, ""},
		{"frames_rx_pause", receivedFrames, model.GlobalPause},
		{"frames_tx_pause", sentFrames, model.GlobalPause},
		{"rx_pause_1us_count", receivedMicros, model.GlobalPause},
		{"frames_rx_dropped", discards, discardPort},
	},
	// drivers/net/ethernet/microsoft/mana/mana_ethtool.c: mana_phy_stats, by traffic class.
	"mana": {
		{"hc_tc%d_rx_pause_phy", receivedFrames, "tc"},
		{"hc_tc%d_tx_pause_phy", sentFrames, "tc"},
		{"hc_rx_pkt_drop_phy", discards, discardPort},
	},
	// drivers/net/ethernet/hisilicon/hns3/hns3pf/hclge_main.c: g_mac_stats_string. Its xoff_time has no stated unit,
	// and is left out.
	"hns3": {
		{"mac_rx_pfc_pri%d_pkt_num", receivedFrames, ""},
		{"mac_tx_pfc_pri%d_pkt_num", sentFrames, ""},
		{"mac_rx_mac_pause_num", receivedFrames, model.GlobalPause},
		{"mac_tx_mac_pause_num", sentFrames, model.GlobalPause},
	},
}
