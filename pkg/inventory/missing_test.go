// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestOneGUID: HCAs with the same node GUID differ by name, and a loss is noticed. The file is not written all the
// time, nor for a name that alternates.
func TestOneGUID(t *testing.T) {
	n := newNode(t)
	alone := n.facts.HCAs
	n.facts.HCAs = append(slices.Clip(alone), hca("rxe0", "0x2", ""), hca("rxe1", "0x2", ""))
	n.want()
	saved := n.i.saved
	for k := range 3 {
		n.facts.GPUs[0].Name = fmt.Sprint("H100 ", k)
		n.want()
	}
	if n.i.saved != saved {
		t.Error("the file was written")
	}
	n.want()
	if n.i.saved.Equal(saved) {
		t.Error("the names were not written")
	}
	n.facts.HCAs = slices.Delete(slices.Clone(n.facts.HCAs), 1, 2)
	n.want("hca 0x2 mlx5_1")
	n.facts.HCAs = n.facts.HCAs[:2]
	n.restart()
	n.want("hca 0x2 mlx5_1", "hca 0x2 rxe1")
	n.facts.HCAs = append(slices.Clip(alone), n.facts.HCAs[1])
	n.want("hca 0x2 rxe1")
}

// TestStarting: after the node's boot, drivers may be loaded after the sensor's start. Until then devices are not
// missed, unless the kernel does not list them.
func TestStarting(t *testing.T) {
	n := newNode(t)
	gpus, hcas := n.facts.GPUs, n.facts.HCAs
	n.facts.GPUs, n.facts.HCAs = nil, nil
	n.facts.PCI = []model.PCIFunction{{Address: "0000:10:00.0"}, {Address: "0000:18:00.0"}}
	n.state["nvidia"], n.state["rdma"] = model.StateAbsent, model.StateAbsent
	n.put("proc/sys/kernel/random/boot_id", "b2")
	n.restart()
	n.want("gpu GPU-b", "hca 0x2")
	n.now = n.now.Add(driverWait)
	n.want("gpu GPU-a", "gpu GPU-b", "hca 0x1", "hca 0x2")
	n.restart()
	n.want("gpu GPU-a", "gpu GPU-b", "hca 0x1", "hca 0x2")
	n.facts.GPUs, n.facts.HCAs = gpus, hcas
	n.state["nvidia"], n.state["rdma"] = model.StateOK, model.StateOK
	n.want()
	n.facts.GPUs, n.state["nvidia"] = nil, model.StateAbsent // its driver was unloaded
	n.want("gpu GPU-a", "gpu GPU-b")
}

// TestExcused: an HCA that becomes a bond's leg, and a GPU that is given to a virtual machine, are missing for a
// reason.
func TestExcused(t *testing.T) {
	n := newNode(t)
	n.facts.HCAs = append(n.facts.HCAs, hca("mlx5_2", "0x3", "0000:18:00.1"))
	n.want()
	n.facts.HCAs = []model.HCA{n.facts.HCAs[0], n.facts.HCAs[1]}
	n.facts.HCAs[0].Name = "rail0"
	n.facts.Links = []model.Link{{Device: "rail0", Port: 1, Netdev: "eth0"}, {Device: "rail0", Port: 1, Netdev: "eth1"}}
	n.want("hca 0x3 *")
	n.facts.PCI = []model.PCIFunction{{Address: "0000:20:00.0", Driver: "vfio-pci"}}
	n.facts.GPUs = n.facts.GPUs[:1]
	n.want("gpu GPU-b *", "hca 0x3 *")
	n.now = n.now.Add(acceptedFor + time.Hour)
	n.want("gpu GPU-b *", "hca 0x3 *") // still the case
	n.facts.PCI, n.facts.Links = nil, nil
	n.want("gpu GPU-b *", "hca 0x3 *") // nothing new is known
	n.facts.PCI, n.facts.Links = []model.PCIFunction{{Address: "0000:20:00.0"}}, []model.Link{{Device: "rail0", Port: 1, Netdev: "eth0"}}
	n.restart()
	n.want("gpu GPU-b", "hca 0x3") // the virtual machine and the bond ended
}

// TestUndriven: a GPU that the kernel lists without a driver is missing if equal GPUs have a driver.
func TestUndriven(t *testing.T) {
	n := newNode(t)
	n.facts.PCI = []model.PCIFunction{
		{Address: "0000:10:00.0", ID: "10de:2330", Driver: "nvidia"},
		{Address: "0000:20:00.0", ID: "10de:2330", Driver: "nvidia"},
		{Address: "0000:30:00.0", ID: "10de:2330"},
		{Address: "0000:40:00.0", ID: "10de:2330", Driver: "vfio-pci"},
		{Address: "0000:01:00.0", ID: "1a03:2000"},
	}
	n.want("gpu 0000:30:00.0")
	if m := n.refresh().Missing[0]; !m.Seen.IsZero() || m.Since.IsZero() {
		t.Errorf("%+v", m)
	}
	n.restart()
	n.want("gpu 0000:30:00.0")
	if got := n.i.Accept(n.now, nil); len(got) != 1 {
		t.Errorf("%q", got)
	}
	n.now = n.now.Add(2 * acceptedFor)
	n.want("gpu 0000:30:00.0 *")
	n.want("gpu 0000:30:00.0 *") // as long as it is there
	n.facts.PCI[2].Driver = "vfio-pci"
	n.want()
	n.facts.PCI[2].Driver = ""
	n.want("gpu 0000:30:00.0")
	n.facts.PCI[2].Driver, n.facts.GPUs = "nvidia", append(n.facts.GPUs, gpu("GPU-c", "0000:30:00.0", "s3"))
	n.want()
	n.facts.PCI[1].Driver, n.facts.GPUs = "", slices.Delete(n.facts.GPUs, 1, 2)
	n.want("gpu GPU-b") // once, under its name
}

// TestSwitchedOff: the devices of a disabled source are unknown: they are not missing.
func TestSwitchedOff(t *testing.T) {
	n := newNode(t)
	n.facts.HCAs = nil
	n.want("hca 0x1", "hca 0x2")
	delete(n.state, "rdma")
	n.want()
}

// TestAccept: an accepted loss is no longer missed, also after a restart; other devices are.
func TestAccept(t *testing.T) {
	n := newNode(t)
	n.facts.GPUs, n.facts.HCAs = nil, n.facts.HCAs[:1]
	n.want("gpu GPU-a", "gpu GPU-b", "hca 0x2")
	if got := n.i.Accept(n.now, []string{"mlx5_1", "GPU-b", "other"}); len(got) != 2 {
		t.Errorf("%q", got)
	}
	n.want("gpu GPU-a", "gpu GPU-b *", "hca 0x2 *")
	n.restart()
	n.want("gpu GPU-a", "gpu GPU-b *", "hca 0x2 *")
	if got := n.i.Accept(n.now, nil); len(got) != 1 {
		t.Errorf("%q", got)
	}
	n.facts.GPUs = []model.GPU{gpu("GPU-b", "0000:20:00.0", "s2")}
	n.want("gpu GPU-a *", "hca 0x2 *")
	n.facts.GPUs = nil
	n.want("gpu GPU-a *", "gpu GPU-b", "hca 0x2 *") // it was back
	n.now = n.now.Add(acceptedFor)
	n.want("gpu GPU-b") // the others are forgotten
}

// TestGiven: a GPU that is given to a virtual machine is never missed, although PCI functions are read once a minute.
func TestGiven(t *testing.T) {
	for _, driver := range []string{"vfio-pci", "nvgrace_gpu_vfio_pci", "xe_vfio_pci", "mlx5_vfio_pci"} {
		n := newNode(t)
		n.o.Sysfs = filepath.Join(n.host, "sys")
		n.restart() // the file is of another sysfs
		n.want()
		n.facts.PCI = []model.PCIFunction{{Address: "0000:20:00.0", Driver: "nvidia"}}
		n.facts.GPUs = n.facts.GPUs[:1]
		link := filepath.Join(n.o.Sysfs, "bus/pci/devices/0000:20:00.0/driver")
		if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink("../../../bus/pci/drivers/"+driver, link)); err != nil {
			t.Fatal(err)
		}
		n.want("gpu GPU-b *")
		n.facts.PCI[0].Driver = driver
		n.want("gpu GPU-b *")
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
		n.want("gpu GPU-b *")
		n.facts.PCI[0].Driver = ""
		n.want("gpu GPU-b")
		if n.logged("no source lists it") != 0 {
			t.Errorf("%v", n.log.All())
		}
	}
}
