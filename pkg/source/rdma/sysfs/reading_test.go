// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// treeDevice is the device mlx5_0 of a tree, read like the source reads it.
type treeDevice struct {
	*Device
	t       *testing.T
	queries Queries
	now     time.Time
	failed  Tally
	ask     Ask
	links   Tally // of the last reading
}

func newTreeDevice(t *testing.T, tr hca.Tree) *treeDevice {
	path, kept := tr.Path("class/infiniband/mlx5_0"), new(atomic.Int64)
	d := &treeDevice{
		Device: NewDevice("mlx5_0", path, path+"/device", kept), t: t, queries: NewQueries(kept), now: time.Now(),
	}
	t.Cleanup(func() {
		d.Close()
		d.queries.Close()
	})
	return d
}

func (d *treeDevice) read() *model.HCA {
	d.t.Helper()
	d.Reader.Buffer = make([]byte, BufferSize)
	_, err := d.Open(func(string) (int, error) { return boundedfile.Open(unix.AT_FDCWD, d.path, unix.O_DIRECTORY) })
	for _, p := range d.Ports {
		d.ReadPort(p, d.now)
		p.Base.Counters = d.ReadGroup(&p.Counters, d.now, &d.failed)
	}
	if err := errors.Join(err, d.queries.Prepare(d.Device)); err != nil {
		d.t.Fatal(err)
	}
	d.links = d.queries.Read(d.now, d.ask)
	if d.queries.Changed() && d.queries.Mark(d.Ports) {
		d.ReadChanged(d.now)
	}
	h := d.HCA
	for _, p := range d.Ports {
		h.Ports = append(h.Ports, p.Base)
	}
	d.queries.Fill(h.Ports)
	return &h
}
