// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"fmt"
	"strconv"

	"github.com/accelscope/accelscope/pkg/model"
)

// readMaster reads which subnet manager is the master. If no subnet manager answers, the master is unknown; an answer
// after that is not a change.
func (s *Source) readMaster(ctx context.Context) {
	s.master = nil
	if !s.run.has(sminfo) {
		return
	}
	out, err := s.local(ctx, s.run.command(sminfo, false))
	if err == nil {
		if s.master = parseMaster(out); s.master == nil {
			err = fmt.Errorf("sminfo: %w", errOutput)
		}
	}
	if err != nil {
		s.logState(sminfo, err.Error())
		return
	}
	s.logState(sminfo, "")
	if s.lastMaster != "" && s.lastMaster != s.master.GUID {
		s.masterChanges++
	}
	s.lastMaster = s.master.GUID
}

var masterLine = lazily(
	`(?m)^sminfo: sm lid ([0-9]{1,5}) sm guid 0x([0-9a-f]{1,16}), activity count [0-9]+ priority ([0-9]{1,2}) state 3 `)

// parseMaster parses the output of sminfo. It returns nil unless a master answered (state 3):
//
//	sminfo: sm lid 1 sm guid 0x100101, activity count 12 priority 15 state 3 SMINFO_MASTER
func parseMaster(text []byte) *model.FabricMaster {
	m := masterLine().FindSubmatch(text)
	if m == nil {
		return nil
	}
	lid, _ := strconv.ParseUint(string(m[1]), 10, 32)
	priority, _ := strconv.Atoi(string(m[3]))
	return &model.FabricMaster{GUID: parseGUID(string(m[2])), LID: uint32(lid), Priority: priority}
}
