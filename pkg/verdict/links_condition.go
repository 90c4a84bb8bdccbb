// SPDX-License-Identifier: Apache-2.0

package verdict

import "time"

// Conditions of links, of the network interface behind a port, and of PCIe.
var (
	subnetManagerLost = &Condition{
		Name: "RDMASubnetManagerLost", Severity: Critical, For: 4 * time.Minute,
		Summary: "The InfiniBand port has a link, and no subnet manager configures it: it transfers nothing.",
		Source:  "a state of the port",
	}
	linkTraining = &Condition{
		Name: "RDMALinkTraining", Severity: Warning, For: 5 * time.Minute,
		Summary: "The link of the port does not come up although something is connected: both ends do not agree, or the transceiver does " +
			"not start.",
		Source: "docs/verdicts.md: intermediate states",
		Words: map[string][]string{
			"state":  {"active_defer", "port_configuration_training", "link_error_recovery", "phy_test"},
			"reason": untrainedLinks, "detail": {unreadyModule},
		},
	}
	gidMissing = &Condition{
		Name: "RDMAGIDMissing", Severity: Warning, Window: day, For: 10 * time.Minute,
		Summary:    "The RoCE port has lost its RoCE v2 GID: programs choose a GID that is not routed, or fail.",
		Thresholds: []Threshold{{Of: "time since the port had one", Value: day.Seconds(), Unit: "s", Below: true}},
		Source:     "a port that never had one may be used without",
	}
	pauseStorm = &Condition{
		Name: "RDMAPauseStorm", Severity: Critical, Window: 15 * time.Minute,
		Summary:    "The port did not take what it received, and stopped its switch for so long that the NIC ended it.",
		Thresholds: []Threshold{{Of: "pause storms", Value: 0, Unit: "in 15m"}},
		Source:     "the limit of the NIC", Words: map[string][]string{"type": {"warning"}},
	}
	uncorrectableBlocks = &Condition{
		Name: "RDMAUncorrectableBlocks", Severity: Warning, Window: 125 * time.Minute, For: 5 * time.Minute,
		Summary:    "Error correction failed while the link stayed up: packets were lost.",
		Thresholds: []Threshold{{Of: "blocks that FEC could not correct", Value: 3.5, Unit: "in 125m"}},
		Source:     "UFM: more than 3 symbol errors in 125 minutes",
	}
	bitErrors = &Condition{
		Name: "RDMABitErrors", Severity: Warning, Window: 5 * time.Minute, For: 15 * time.Minute,
		Summary: "The raw bit error ratio of the link is above the published limit. Error correction still repairs most of it.",
		Thresholds: []Threshold{
			{Of: "bits that FEC corrected", Value: 2.4e-4},
			{Of: "of InfiniBand HDR and NDR", Value: 1e-5},
			{Of: "of InfiniBand EDR", Value: 1e-9},
		},
		Source: "UFM: Field_BER_Thresholds.csv; RS(544,514) fails to correct at 2.4e-4",
	}
	moduleGone = &Condition{
		Name: "RDMAModuleGone", Severity: Warning, For: 10 * time.Minute,
		Summary: "The transceiver or cable that was in the port is not there any more, or does not answer: the link stays down.",
		Source:  "the inventory of the node; accelscope inventory accept ends it",
	}
	moduleAlarm = &Condition{
		Name: "RDMAModuleAlarm", Severity: Warning, For: 10 * time.Minute,
		Summary:    "The transceiver or cable of the port has failed, or is beyond a limit that its manufacturer wrote into it.",
		Thresholds: []Threshold{{Of: "level of the alarm, above or below", Value: 2, Equal: true}},
		Source:     "SFF-8472, SFF-8636 and CMIS",
	}
	pcieDegraded = &Condition{
		Name: "RDMAPCIeDegraded", Severity: Warning, For: 15 * time.Minute,
		Summary:    "The PCIe link of the HCA has fewer lanes or a lower speed than the HCA and its slot support.",
		Thresholds: []Threshold{{Of: "lanes or speed, as a part of what is possible", Value: 1, Below: true}},
		Source:     "both ends report what they support",
	}
	pcieErrors = &Condition{
		Name: "RDMAPCIeErrors", Severity: Warning, Window: 15 * time.Minute,
		Summary: "The PCIe link of the HCA has errors that it did not repair, or many that it repaired.",
		Thresholds: []Threshold{
			{Of: "nonfatal and fatal errors", Value: 0, Unit: "in 15m"}, {Of: "correctable errors", Value: 900, Unit: "in 15m"},
		},
		Source: "one correctable error a second is a limit of ours",
	}
	belowLineRate = &Condition{
		Name: "RDMABelowLineRate", Severity: Warning, Window: 5 * time.Minute, For: 15 * time.Minute,
		Summary: "The port loses time or packets: it is slower than its link could be. The evidence lists all causes that the node " +
			"knows, the most likely first.",
		Thresholds: []Threshold{
			{Of: "time paused, or seconds in which PCIe stalled, as a part of all", Value: 0.1},
			{Of: "received packets that found no room", Value: 10, Unit: "/s"},
		},
		Source: "limits of ours; docs/verdicts.md: below the line rate",
	}
	gpuPCIeErrors = &Condition{
		Name: "GPUPCIeErrors", Severity: Warning, Window: 15 * time.Minute,
		Summary:    "The PCIe link of the GPU has errors that it did not repair, or many that it repaired.",
		Thresholds: pcieErrors.Thresholds,
		Source:     "as of HCAs",
	}
	gpuPCIeSlow = &Condition{
		Name: "GPUPCIeSlow", Severity: Warning, For: 15 * time.Minute,
		Summary: "The GPU is busy, and its PCIe link runs at a lower generation than the GPU and its slot support.",
		Thresholds: []Threshold{
			{Of: "generation, as a part of what is possible", Value: 1, Below: true}, {Of: "utilization", Value: 50, Unit: "%"},
		},
		Source: "an idle GPU lowers the speed of its link",
	}
)
