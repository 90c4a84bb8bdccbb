// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"strings"
)

// found is a verdict in /api/v1/verdicts.
type found struct {
	Name     string
	Subject  struct{ Device string }
	Evidence []string
}

// allVerdicts returns the verdicts of the last refresh.
func (s *sensor) allVerdicts() ([]found, error) {
	var answer struct {
		Data struct{ Verdicts []found }
	}
	err := getJSON(s.url+"/api/v1/verdicts", &answer)
	return answer.Data.Verdicts, err
}

// verdicts returns the verdicts of the last refresh about a device.
func (s *sensor) verdicts(device string) (all []found, err error) {
	verdicts, err := s.allVerdicts()
	if err != nil {
		return nil, err
	}
	for _, v := range verdicts {
		if v.Subject.Device == device {
			all = append(all, v)
		}
	}
	return all, nil
}

// judged returns an error unless a device has a verdict, or for want = false has no verdict.
func (s *sensor) judged(device, name string, want bool) error {
	all, err := s.verdicts(device)
	if err != nil {
		return err
	}
	has := false
	for _, v := range all {
		has = has || v.Name == name
	}
	if has != want {
		return fmt.Errorf("%s of %s: %v, want %v: %+v", name, device, has, want, all)
	}
	return nil
}

// slow returns an error unless the verdict on the rate of a port has these causes in this order.
func (s *sensor) slow(device string, causes ...string) error {
	all, err := s.verdicts(device)
	if err != nil {
		return err
	}
	for _, v := range all {
		if v.Name != "RDMABelowLineRate" || len(v.Evidence) != len(causes) {
			continue
		}
		for i, c := range causes {
			if !strings.Contains(v.Evidence[i], c+": ") || (i == 0) != strings.HasPrefix(v.Evidence[i], "most likely ") {
				return fmt.Errorf("%q, want %q", v.Evidence, causes)
			}
		}
		return nil
	}
	return fmt.Errorf("%+v, want %q", all, causes)
}
