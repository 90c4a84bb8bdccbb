// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"fmt"
	"slices"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
)

// doctor is why figures are absent, and what helps.
type doctor struct {
	Absent []absence
	Checks []api.Check // that are not ok
	OK     int         // number of the others
}

// absence is a figure that is absent in some rows.
type absence struct {
	Figure, Reason, Cure string
	Rows                 int
}

// gapTexts are the reasons for which bytes are not counted, with what helps.
var gapTexts = map[model.Gap][2]string{
	model.GapOff:                 {"probes of the data path are switched off", "--rdma.datapath=survey"},
	model.GapRefused:             {"the kernel or a missing right prevents probes", "the hooks below have the reason"},
	model.GapNotSelected:         {"--rdma.datapath-select does not match the workload", "change the expression"},
	model.GapLate:                {"a context was open before its functions were probed", "it ends when the program opens the HCA again"},
	model.GapSurvey:              {"calls are counted in surveys only: all cost more than the budget", "raise --rdma.datapath-budget"},
	model.GapExtendedPoll:        {"completions of ibv_start_poll whose length was not read", ""},
	model.GapProviderUnsupported: {"the functions of the provider were not found", ""},
	model.GapDirectWQE:           {"no call for 10 s: idle, or the program writes to its queues directly", "--rdma.qp-counters=use"},
	model.GapDEVX:                {"the workload has DEVX objects, which may be queue pairs", ""},
	model.GapFull:                {"no room for more verbs contexts", "raise --rdma.datapath-max-contexts"},
	model.GapLost:                {"calls that could not be followed or read", "accelscope_probe_lost_total has the reason"},
	model.GapNotSeen:             {"queue pairs that the hooks have not seen", "it ends when the program creates them again"},
	model.GapKernel:              {"queue pairs of the kernel beside other users of the HCA", "give storage an HCA of its own"},
	model.GapUnattributed:        {"earlier bytes only: the device moved some while their owner was not known", ""},
}

func doctorOf(k *api.Known, rows []overview.Row) doctor {
	var d doctor
	if k.Checks != nil {
		for _, c := range k.Checks() {
			if c.State == model.StateOK || c.State == model.StateAbsent && c.Cure == "" {
				d.OK++
				continue
			}
			c.Name, c.Reason = format.Escape(c.Name), format.Escape(c.Reason)
			d.Checks = append(d.Checks, c)
		}
	}
	counts := map[model.Gap]int{}
	var estimates, unlisted, unknown, uncounted int
	for i := range rows {
		r := &rows[i]
		for _, g := range r.Gaps {
			counts[g]++
		}
		if r.Workload == "" {
			continue
		}
		if r.Transmit != nil && r.Transmit.Estimate || r.Receive != nil && r.Receive.Estimate {
			estimates++
		}
		if r.Kind == overview.GPU && r.Processes == nil {
			unlisted++
		}
		if r.Kind == overview.GPU && r.Processes != nil && r.Memory == nil {
			unknown++
		}
		if r.Kind == overview.HCA && r.Errors == nil {
			uncounted++
		}
	}
	for _, g := range model.Gaps {
		if n := counts[g]; n > 0 {
			d.Absent = append(d.Absent, absence{"bytes: " + string(g), gapTexts[g][0], gapTexts[g][1], n})
		}
	}
	for _, a := range []absence{
		{
			"bytes with ~", "an estimate: the bytes of the device are split by the last survey",
			"shorten --rdma.survey-interval, or raise --rdma.datapath-budget", estimates,
		},
		{"memory, utilization", "the processes of the GPU could not be listed", "the states below have the reason", unlisted},
		{"memory", "the driver lists a process of the workload without its memory", "", unknown},
		{"verbs, errors", "verbs are counted by the probe in the kernel only", "the state of the source probe has the reason", uncounted},
	} {
		if a.Rows > 0 {
			d.Absent = append(d.Absent, a)
		}
	}
	slices.SortStableFunc(d.Absent, func(a, b absence) int { return b.Rows - a.Rows })
	return d
}

func (a absence) Where() string {
	if a.Rows == 1 {
		return "1 row"
	}
	return fmt.Sprintf("%d rows", a.Rows)
}
