// SPDX-License-Identifier: Apache-2.0

package verdict

import "time"

// Conditions of links, of the network interface behind a port, and of PCIe.
var (
	subnetManagerLost = &Condition{
		Name: "RDMASubnetManagerLost", Severity: Critical, For: 4 * time.Minute,
		Summary: "The InfiniBand port has a link but no subnet manager: it transfers nothing.",
		Source:  "port state",
	}
	linkTraining = &Condition{
		Name: "RDMALinkTraining", Severity: Warning, For: 5 * time.Minute,
		Summary: "The connected link does not come up: the ends disagree, or the transceiver does not start.",
		Source:  "docs/verdicts.md: intermediate states",
		Words: map[string][]string{
			"state":  {"active_defer", "port_configuration_training", "link_error_recovery", "phy_test"},
			"reason": untrainedLinks, "detail": {unreadyModule},
		},
	}
	gidMissing = &Condition{
		Name: "RDMAGIDMissing", Severity: Warning, Window: day, For: 10 * time.Minute,
		Summary:    "The RoCE port lost its RoCE v2 GID: programs choose an unrouted GID or fail.",
		Thresholds: []Threshold{{Of: "time since the port had the GID", Value: day.Seconds(), Unit: "s", Below: true}},
		Source:     "a port that never had the GID may not need it",
	}
	pauseStorm = &Condition{
		Name: "RDMAPauseStorm", Severity: Critical, Window: 15 * time.Minute,
		Summary:    "The port accepted no packets and paused its switch until the NIC ended the pause.",
		Thresholds: []Threshold{{Of: "pause storms", Value: 0, Unit: "in 15m"}},
		Source:     "the NIC's limit", Words: map[string][]string{"type": {"warning"}},
	}
	uncorrectableBlocks = &Condition{
		Name: "RDMAUncorrectableBlocks", Severity: Warning, Window: 125 * time.Minute, For: 5 * time.Minute,
		Summary:    "FEC failed while the link stayed up: packets were lost.",
		Thresholds: []Threshold{{Of: "blocks that FEC could not correct", Value: 3.5, Unit: "in 125m"}},
		Source:     "UFM: more than 3 symbol errors in 125 minutes",
	}
	bitErrors = &Condition{
		Name: "RDMABitErrors", Severity: Warning, Window: 5 * time.Minute, For: 15 * time.Minute,
		Summary: "The link's raw bit error ratio exceeds the published limit. FEC still repairs most errors.",
		Thresholds: []Threshold{
			{Of: "bits that FEC corrected", Value: 2.4e-4},
			{Of: "of InfiniBand HDR and NDR", Value: 1e-5},
			{Of: "of InfiniBand EDR", Value: 1e-9},
		},
		Source: "UFM: Field_BER_Thresholds.csv; RS(544,514) fails at 2.4e-4",
	}
	moduleGone = &Condition{
		Name: "RDMAModuleGone", Severity: Warning, For: 10 * time.Minute,
		Summary: "The port's transceiver or cable is missing or does not answer: the link stays down.",
		Source:  "the node's inventory; accelscope inventory accept ends it",
	}
	moduleAlarm = &Condition{
		Name: "RDMAModuleAlarm", Severity: Warning, For: 10 * time.Minute,
		Summary:    "The port's transceiver or cable failed, or is beyond its manufacturer's limit.",
		Thresholds: []Threshold{{Of: "alarm level, above or below", Value: 2, Equal: true}},
		Source:     "SFF-8472, SFF-8636 and CMIS",
	}
	pcieDegraded = &Condition{
		Name: "RDMAPCIeDegraded", Severity: Warning, For: 15 * time.Minute,
		Summary:    "The HCA's PCIe link has fewer lanes or less speed than HCA and slot support.",
		Thresholds: []Threshold{{Of: "fraction of the possible lanes or speed", Value: 1, Below: true}},
		Source:     "both ends report what they support",
	}
	pcieErrors = &Condition{
		Name: "RDMAPCIeErrors", Severity: Warning, Window: 15 * time.Minute,
		Summary: "The HCA's PCIe link has unrepaired errors, or many repaired errors.",
		Thresholds: []Threshold{
			{Of: "nonfatal and fatal errors", Value: 0, Unit: "in 15m"}, {Of: "correctable errors", Value: 900, Unit: "in 15m"},
		},
		Source: "our limit: one correctable error per second",
	}
	belowLineRate = &Condition{
		Name: "RDMABelowLineRate", Severity: Warning, Window: 5 * time.Minute, For: 15 * time.Minute,
		Summary: "The port loses time or packets: it is slower than its link. The evidence lists known causes, the most likely first.",
		Thresholds: []Threshold{
			{Of: "fraction of time paused, or of seconds with PCIe stalls", Value: 0.1},
			{Of: "received packets that found no room", Value: 10, Unit: "/s"},
		},
		Source: "our limits; docs/verdicts.md: below the line rate",
	}
	gpuPCIeErrors = &Condition{
		Name: "GPUPCIeErrors", Severity: Warning, Window: 15 * time.Minute,
		Summary:    "The GPU's PCIe link has unrepaired errors, or many repaired errors.",
		Thresholds: pcieErrors.Thresholds,
		Source:     "as for HCAs",
	}
	gpuPCIeSlow = &Condition{
		Name: "GPUPCIeSlow", Severity: Warning, For: 15 * time.Minute,
		Summary: "The busy GPU's PCIe link runs below the generation that GPU and slot support.",
		Thresholds: []Threshold{
			{Of: "fraction of the possible generation", Value: 1, Below: true}, {Of: "utilization", Value: 50, Unit: "%"},
		},
		Source: "idle GPUs lower their link speed",
	}
)
