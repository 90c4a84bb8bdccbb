// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// The network interface of a physical function reports the traffic of its virtual functions (IFLA_VF_STATS), wherever
// they are. The kernel queries the firmware for each virtual function while it holds the lock of all network
// configuration (rtnl), and has no request for a single function. So the request is sent in the background, every 10 s,
// and only if a virtual function is not an HCA in the sensor's namespace: the port counters of such an HCA are read
// instead.
const functionsEvery = 10 * time.Second

// functions is the result of the last read of the physical functions. Reads run in the background; Source.Read does not
// wait for them.
type functions struct {
	pfs map[string]*physical // by HCA; belongs to the read in progress

	call    hang.Call[[]model.VF]
	pending *hang.Pending[[]model.VF] // the read in progress, or nil
	began   time.Time
	reads   uint64     // number of reads begun
	vfs     []model.VF // nil before the first read
	err     error
}

type physical struct {
	call  hang.Call[functionsOf]
	state interfaceState
}

// functionsOf is the result of one call for a physical function.
type functionsOf struct {
	vfs   []model.VF
	state interfaceState
}

// interfaceState is the state of the network interface that reports the virtual functions
// of a physical function.
type interfaceState struct {
	name string
	// counts is true once a counter was not zero. Before that, a driver that does not count looks like a driver with
	// idle functions.
	counts bool
	pause  hang.Backoff
	err    error // error of the last request
}

// readFunctions returns the virtual functions of hcas from the last completed read, and starts another read when it is
// due.
func (s *Source) readFunctions(hcas []model.HCA, now time.Time) ([]model.VF, []model.DeviceState) {
	f := &s.functions
	if f.pending.Returned() {
		f.vfs, f.err = f.pending.Wait(context.Background())
		f.pending = nil
	}
	if f.pending == nil && now.Sub(f.began) >= functionsEvery {
		f.began = now
		f.reads++
		number, limit := f.reads, s.opt.Deadline
		f.pending = f.call.Start(limit, func() ([]model.VF, error) {
			vfs, err := s.readAllFunctions(hcas, now, limit)
			for i := range vfs {
				if vfs[i].Counted {
					vfs[i].Look = number
				}
			}
			return vfs, err
		})
	}
	var states []model.DeviceState
	if f.err != nil {
		states = []model.DeviceState{{Source: s.Name(), Device: "sriov", State: model.StateFailed, Reason: f.err.Error()}}
	}
	return onlyAway(f.vfs, hcas), states
}

// onlyAway removes the counters of functions that became HCAs of this namespace since the last read: the traffic that
// their own ports count must not be reported twice.
func onlyAway(vfs []model.VF, hcas []model.HCA) []model.VF {
	if !slices.ContainsFunc(vfs, func(v model.VF) bool { return v.Counted }) {
		return vfs
	}
	shown := map[string]bool{}
	for i := range hcas {
		if h := &hcas[i]; h.VF && hasCounters(h) {
			shown[h.PCIAddress] = true
		}
	}
	vfs = slices.Clone(vfs)
	for i, v := range vfs {
		if v.Counted && shown[v.PCIAddress] {
			vfs[i] = model.VF{PF: v.PF, Number: v.Number, PCIAddress: v.PCIAddress, NodeGUID: v.NodeGUID, PortGUID: v.PortGUID}
		}
	}
	return vfs
}

func hasCounters(h *model.HCA) bool {
	return slices.ContainsFunc(h.Ports, func(p model.Port) bool { return len(p.Counters)+len(p.HWCounters) > 0 })
}

// readAllFunctions reads all physical functions. A function that hangs or fails does not affect the others.
func (s *Source) readAllFunctions(hcas []model.HCA, now time.Time, limit time.Duration) ([]model.VF, error) {
	virtual := map[string]*model.HCA{}
	pfs := make([]*model.HCA, 0, len(hcas))
	last := s.functions.pfs
	s.functions.pfs = make(map[string]*physical, len(hcas))
	for i := range hcas {
		h := &hcas[i]
		switch {
		case h.PCIAddress == "":
		case h.VF:
			virtual[h.PCIAddress] = h
		case h.Netns == 0:
			pfs = append(pfs, h)
			s.functions.pfs[h.Name] = cmp.Or(last[h.Name], &physical{})
		}
	}
	found, errs := make([][]model.VF, len(pfs)), make([]error, len(pfs))
	safely.Each(len(pfs), inFlight, func(i int) {
		h, p := pfs[i], s.functions.pfs[pfs[i].Name]
		before := p.state
		r, err := p.call.Do(context.Background(), limit, func() (functionsOf, error) {
			return s.readPhysical(h, before, virtual, now, time.Now().Add(limit)), nil
		})
		if err == nil {
			found[i], p.state, err = r.vfs, r.state, r.state.err
		}
		if err != nil {
			errs[i] = fmt.Errorf("virtual functions of %s: %w", h.Name, err)
		}
	})
	vfs := []model.VF{}
	for _, f := range found {
		vfs = append(vfs, f...)
	}
	return vfs, errors.Join(errs...)
}

// readPhysical lists the virtual functions of a physical function
// (device/sriov_numvfs and device/virtfnN) with their GUIDs and counters.
func (s *Source) readPhysical(h *model.HCA, t interfaceState, virtual map[string]*model.HCA, now, deadline time.Time,
) functionsOf {
	r := sysfs.NewReader()
	function := filepath.Join(s.root, h.Name, "device")
	n, err := strconv.ParseUint(r.Line(unix.AT_FDCWD, function+"/sriov_numvfs"), 10, 16)
	if n = min(n, sysfs.MaxFunctions); err != nil || n == 0 {
		return functionsOf{}
	}
	vfs := make([]model.VF, n)
	shown := make([]bool, n)
	away := false
	for i := range vfs {
		v := &vfs[i]
		v.PF, v.Number = h.Name, i
		v.PCIAddress = sysfs.PCIAddress(r.Link(function + "/virtfn" + strconv.Itoa(i)))
		if own := virtual[v.PCIAddress]; own != nil {
			v.NodeGUID, shown[i] = own.NodeGUID, hasCounters(own)
			for _, p := range own.Ports {
				v.PortGUID = cmp.Or(v.PortGUID, p.PortGUID)
			}
		}
		away = away || !shown[i]
	}
	switch {
	case !away || !s.enabled || !s.genuine:
		t.err = nil
	case !t.pause.Waiting(now):
		var l link
		l, t.name, t.err = s.askInterfaces(r, h, int(n), t.name, deadline)
		if t.err != nil && !l.listed {
			t.pause.Failed(now)
		} else {
			t.pause = hang.Backoff{}
		}
		t.counts = t.counts || slices.ContainsFunc(l.vfs, functionOf.moved)
		for i := range l.vfs {
			f, v := &l.vfs[i], &vfs[i]
			v.NodeGUID, v.PortGUID = cmp.Or(v.NodeGUID, f.nodeGUID), cmp.Or(v.PortGUID, f.portGUID)
			if v.Counted = f.listed && t.counts && !shown[i]; v.Counted {
				v.TransmitBytes, v.ReceiveBytes = f.txBytes, f.rxBytes
				v.TransmitPackets, v.ReceivePackets = f.txPackets, f.rxPackets
			}
		}
	}
	joinGUIDs(r, function, vfs)
	return functionsOf{vfs, t}
}

// joinGUIDs adds missing GUIDs from the files of the vendor's driver.
func joinGUIDs(r *sysfs.Reader, function string, vfs []model.VF) {
	known := func(v model.VF) bool { return v.NodeGUID != "" && v.PortGUID != "" }
	if !slices.ContainsFunc(vfs, func(v model.VF) bool { return !known(v) }) {
		return
	}
	nodes, ports := sysfs.VirtualGUIDs(r, function, "node"), sysfs.VirtualGUIDs(r, function, "port")
	for i := range vfs {
		v := &vfs[i]
		v.NodeGUID, v.PortGUID = cmp.Or(v.NodeGUID, nodes[v.PCIAddress]), cmp.Or(v.PortGUID, ports[v.PCIAddress])
	}
}
