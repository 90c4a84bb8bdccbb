// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// searches reports whether HCAs may be in network namespaces that are searched. Without class/infiniband a netlink
// request would load ib_core.
func (s *Source) searches() bool {
	return s.opt.Namespaces != nil && s.enabled && s.genuine && s.class >= 0
}

// hidden returns states for HCAs that were moved to a network namespace where no search has found them yet. Only
// class/infiniband_verbs, which has no namespaces, lists them. They are not gone. VFs are moved all the time, so they
// are left out.
func (s *Source) hidden(n *node, moved []*device, now time.Time) []model.DeviceState {
	if n == nil || !s.searches() {
		return nil
	}
	var states []model.DeviceState
	for name, u := range n.uverbs {
		found := slices.ContainsFunc(moved, func(d *device) bool { return d.name == name })
		if found || u.Name == "" || s.known[name] != nil || !s.chosen(name) || s.isVirtual(u.PCI) {
			continue
		}
		states = append(states, model.DeviceState{
			Source: s.Name(), Device: name, State: model.StateUnsupported,
			Reason: fmt.Sprintf("%s is in a network namespace where it was not found: %v", u.Name, model.ErrUnsupported),
		})
	}
	if len(states) > 0 && now.Sub(n.read) >= nodeRetry {
		s.node = nil // a removed HCA is no longer listed
	}
	slices.SortFunc(states, func(a, b model.DeviceState) int { return strings.Compare(a.Device, b.Device) })
	return states
}

func (s *Source) isVirtual(address string) bool {
	if address == "" {
		return false
	}
	_, err := os.Lstat(filepath.Join(sysfs.FunctionPath(s.opt.Sysfs, address), "physfn"))
	return err == nil
}
