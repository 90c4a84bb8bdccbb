// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"slices"

	"github.com/accelscope/accelscope/pkg/model"
)

// Problems of GPUs by condition.
var (
	lostProblems    = []string{model.ProblemLost, model.ProblemStuck, model.ProblemUnreadable}
	failingProblems = []string{model.ProblemRemapFailure, model.ProblemMemoryBadPages, model.ProblemSRAM}
	pendingProblems = []string{model.ProblemRemapPending, model.ProblemRetirePending}
	eccProblems     = []string{model.ProblemECC}
	thermalProblems = []string{model.ProblemThermal}
	brakeProblems   = []string{model.ProblemPowerBrake}
	askingProblems  = []string{model.ProblemXID, model.ProblemRecovery} // they ask for a reset, which ends the others
	// notReadyProblems keep CUDA from starting.
	notReadyProblems = []string{model.ProblemFabricNotReady}
	// namedProblems have a condition of their own.
	namedProblems = join(lostProblems, failingProblems, pendingProblems, eccProblems, thermalProblems, brakeProblems, askingProblems,
		notReadyProblems)
)

// criticalXIDs are the XIDs that no program causes, as in pkg/source/nvidia/wire. recoveredXID is also logged after the
// GPU has recovered.
var criticalXIDs = []string{
	"46", "48", "62", "64", "74", "79", "95", "109", "110", "119", "120", "136", "140", "143", "144", "145", "146", "147", "148", "149",
	"150", "155", "156", "158",
}

const recoveredXID = "154"

// gpuFaults are the codes of GPU faults that no program causes. harmlessFaults are codes of HCAs that are not faults.
var (
	gpuFaults = join(criticalXIDs, []string{
		recoveredXID, "fallen_off_bus", "reset_failed", "ras_fatal",
		"ras_uncorrectable", "wedged", "init_failed", "pcie_fatal", "inaccessible",
	})
	harmlessFaults = []string{"module_unplugged", "module_disabled", "abnormal_event"}
	// The PCI core logs about any NIC: functionFaults count for functions with an HCA. RDMAPCIeErrors covers
	// otherAlertFaults.
	functionFaults   = []string{"pcie_fatal", "inaccessible"}
	otherAlertFaults = []string{"pcie_nonfatal"}
)

// harmlessErrnos are the errors of verbs that libraries get when they probe for features. harmlessStatus are completion
// statuses that follow an earlier error, or are not errors.
var (
	harmlessErrnos = []string{"EAGAIN", "EINTR", "EBADF", "ENOTTY", "ENOSYS", "EOPNOTSUPP", "ENOTSUPP", "EPROTONOSUPPORT"}
	harmlessStatus = []string{"wr_flush_error", "tag_matching_rendezvous_incomplete"}
)

// untrainedLinks are driver reasons for a link that is down while both ends try to bring it up. unreadyModule is the
// detail of the reason for a transceiver that has not started.
var untrainedLinks = []string{"link_training_failure"}

const unreadyModule = "cmis_not_ready"

// shownGaps are the gaps of coverage that are neither a choice nor a pause.
var shownGaps = []model.Gap{
	model.GapRefused, model.GapLate, model.GapExtendedPoll, model.GapProviderUnsupported, model.GapDEVX, model.GapFull, model.GapLost,
	model.GapNotSeen,
}

func join(lists ...[]string) []string { return slices.Concat(lists...) }
