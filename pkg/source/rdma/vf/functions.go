// SPDX-License-Identifier: Apache-2.0

// Package vf reads the virtual functions of HCAs: their GUIDs, and the traffic that the network interface of their physical
// function reports of them.
package vf

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
	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// The network interface of a physical function reports the traffic of its virtual functions (IFLA_VF_STATS), wherever
// they are. The kernel queries the firmware for each virtual function while it holds the lock of all network
// configuration (rtnl), and has no request for a single function. So the request is sent in the background, every 10 s,
// and only if a virtual function is not an HCA in the sensor's namespace: the port counters of such an HCA are read
// instead.
const functionsEvery = 10 * time.Second

// Functions reads the virtual functions of a node. Reads run in the background; Read does not wait for them. Only one
// goroutine may call Read.
type Functions struct {
	class string                        // directory class/infiniband
	limit time.Duration                 // time limit of a physical function
	dial  func() (*netlink.Conn, error) // opens rtnetlink

	pfs map[string]*physical // by HCA; belongs to the read in progress

	call    hang.Call[[]model.VF]
	pending *hang.Pending[[]model.VF] // the read in progress, or nil
	began   time.Time
	reads   uint64     // number of reads begun
	vfs     []model.VF // nil before the first read
	err     error
}

// New returns Functions for the HCAs of a directory class/infiniband. limit is the time limit of a physical function. It
// opens nothing yet.
func New(class string, limit time.Duration) *Functions {
	return &Functions{class: class, limit: limit, dial: dial}
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

// Read returns the virtual functions of hcas as the last completed read found them, nil before the first one, and starts
// another read when it is due. ask: the network interfaces of physical functions are asked for counters and GUIDs, by rtnetlink. The
// state is of a failed read.
func (f *Functions) Read(hcas []model.HCA, ask bool, now time.Time) ([]model.VF, []model.DeviceState) {
	if f.pending.Returned() {
		f.vfs, f.err = f.pending.Wait(context.Background())
		f.pending = nil
	}
	if f.pending == nil && now.Sub(f.began) >= functionsEvery {
		f.began = now
		f.reads++
		number := f.reads
		f.pending = f.call.Start(f.limit, func() ([]model.VF, error) {
			vfs, err := f.readAll(hcas, ask, now)
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
		states = []model.DeviceState{{Source: "rdma", Device: "sriov", State: model.StateFailed, Reason: f.err.Error()}}
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

// readAll reads all physical functions. A function that hangs or fails does not affect the others.
func (f *Functions) readAll(hcas []model.HCA, ask bool, now time.Time) ([]model.VF, error) {
	virtual := map[string]*model.HCA{}
	pfs := make([]*model.HCA, 0, len(hcas))
	last := f.pfs
	f.pfs = make(map[string]*physical, len(hcas))
	for i := range hcas {
		h := &hcas[i]
		switch {
		case h.PCIAddress == "":
		case h.VF:
			virtual[h.PCIAddress] = h
		case h.Netns == 0:
			pfs = append(pfs, h)
			f.pfs[h.Name] = cmp.Or(last[h.Name], &physical{})
		}
	}
	found, errs := make([][]model.VF, len(pfs)), make([]error, len(pfs))
	safely.Each(len(pfs), sysfs.InFlight, func(i int) {
		h, p := pfs[i], f.pfs[pfs[i].Name]
		before := p.state
		r, err := p.call.Do(context.Background(), f.limit, func() (functionsOf, error) {
			return f.readPhysical(h, before, virtual, ask, now), nil
		})
		if err == nil {
			found[i], p.state, err = r.vfs, r.state, r.state.err
		}
		if err != nil {
			errs[i] = fmt.Errorf("virtual functions of %s: %w", h.Name, err)
		}
	})
	vfs := []model.VF{}
	for _, of := range found {
		vfs = append(vfs, of...)
	}
	return vfs, errors.Join(errs...)
}

// readPhysical lists the virtual functions of a physical function
// (device/sriov_numvfs and device/virtfnN) with their GUIDs and counters.
func (f *Functions) readPhysical(h *model.HCA, t interfaceState, virtual map[string]*model.HCA, ask bool, now time.Time,
) functionsOf {
	deadline := time.Now().Add(f.limit)
	r := sysfs.NewReader()
	function := filepath.Join(f.class, h.Name, "device")
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
	case !away || !ask:
		t.err = nil
	case !t.pause.Waiting(now):
		var l link
		l, t.name, t.err = f.askInterfaces(r, h, int(n), t.name, deadline)
		if t.err != nil && !l.listed {
			t.pause.Failed(now)
		} else {
			t.pause = hang.Backoff{}
		}
		t.counts = t.counts || slices.ContainsFunc(l.vfs, functionOf.moved)
		for i := range l.vfs {
			of, v := &l.vfs[i], &vfs[i]
			v.NodeGUID, v.PortGUID = cmp.Or(v.NodeGUID, of.nodeGUID), cmp.Or(v.PortGUID, of.portGUID)
			if v.Counted = of.listed && t.counts && !shown[i]; v.Counted {
				v.TransmitBytes, v.ReceiveBytes = of.txBytes, of.rxBytes
				v.TransmitPackets, v.ReceivePackets = of.txPackets, of.rxPackets
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
