// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
	fake "github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fakes/nvml/nvmltest"
)

// maxCallsPerRound is how many calls a round of eight GPUs may make. The calls of slow rounds are spread over the
// others.
const maxCallsPerRound = 400

// TestCalls checks the number of calls, which does not depend on the machine.
func TestCalls(t *testing.T) {
	for driver, change := range map[string]func(*fake.Scenario, int){"current": nil, "older": older} {
		t.Run(driver, func(t *testing.T) {
			round, links := callsOfRound(t, change)
			if t.Logf("%.0f calls per round, %.1f of them for fields and links", round, links); round > maxCallsPerRound {
				t.Errorf("at most %d are expected", maxCallsPerRound)
			}
		})
	}
}

// older makes GPU n a GPU with 12 links and an older driver. This driver has no fields by scope for the states and
// errors of links, but one field per link and error.
func older(s *fake.Scenario, n int) {
	d := fmt.Sprint(n)
	s.Set(d, fmt.Sprint("field.", nvml.FI_DEV_NVLINK_LINK_COUNT), "u", 12)
	for link := range uint32(18) {
		for _, id := range []uint32{
			nvml.FI_DEV_NVLINK_ERROR_DL_REPLAY, nvml.FI_DEV_NVLINK_ERROR_DL_RECOVERY, nvml.FI_DEV_NVLINK_ERROR_DL_CRC, nvml.FI_DEV_NVLINK_GET_STATE,
		} {
			s.Unset(d, fmt.Sprintf("field.%d.%d", id, link))
		}
		for i, c := range linkCounters {
			if f, ok := c.field(link); ok {
				s.Set(d, fmt.Sprint("field.", f.id), 100*i+int(link))
			}
		}
	}
}

// BenchmarkCalls reports the number of calls into NVML.
func BenchmarkCalls(b *testing.B) {
	for range b.N {
		round, links := callsOfRound(b, nil)
		b.ReportMetric(round, "calls/round")
		b.ReportMetric(links, "fields_and_links/round")
		b.ReportMetric(callsOfScrape(b), "calls/scrape")
	}
}

// eightGPUs starts a session with eight H100 of the fake library, with 18 links and 25 processes each. change may
// change each GPU.
func eightGPUs(t testing.TB, interval time.Duration, change func(*fake.Scenario, int)) (*Session, func() fake.Calls) {
	t.Helper()
	s, err := fake.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, variable := range s.Environment() {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	for n := range fake.GPUs {
		s.AddH100(n)
		if change != nil {
			change(s, n)
		}
		for i := range 25 {
			s.Processes = append(s.Processes, fake.Process{
				Device: fmt.Sprint(n), PID: 1000 + 100*n + i, Memory: 1 << 30, SM: 1, Mem: 1, Kinds: "C",
			})
		}
	}
	s.Balance()
	if err := s.Write(); err != nil {
		t.Fatal(err)
	}
	session := started(t, nvmltest.Library(t, false), interval)
	return session, func() fake.Calls {
		t.Helper()
		c, err := s.Calls()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
}

// callsOfRound returns the mean number of calls of a round of all GPUs, and how many of them read fields and NVLinks.
func callsOfRound(t testing.TB, change func(*fake.Scenario, int)) (round, links float64) {
	t.Helper()
	session, calls := eightGPUs(t, 200*time.Millisecond, change) // more than a sampling period of the driver
	defer session.End()
	wait := func(since fake.Calls, rounds uint64) fake.Calls {
		for end := time.Now().Add(nvmltest.Long); ; time.Sleep(time.Millisecond) {
			counted := calls().Since(since)
			if roundsOf(counted) >= rounds {
				return counted
			}
			if time.Now().After(end) {
				t.Fatalf("%d rounds have ended", roundsOf(counted))
			}
		}
	}
	wait(calls(), 2) // values that are read only once have been read
	counted := wait(calls(), slowRounds)
	for function, n := range counted.Functions() {
		calls := float64(n) / float64(roundsOf(counted))
		if strings.HasPrefix(function, "nvmlDevice") || strings.HasPrefix(function, "nvmlGpm") {
			round += calls
		}
		if strings.HasPrefix(function, "nvmlDeviceGetNvLink") || function == "nvmlDeviceGetFieldValues" {
			links += calls
		}
	}
	return round, links
}

// roundsOf returns the number of rounds of all GPUs. Each round reads the MIG mode.
func roundsOf(c fake.Calls) uint64 { return c.Functions()["nvmlDeviceGetMigMode"] / fake.GPUs }

func callsOfScrape(t testing.TB) float64 {
	t.Helper()
	session, calls := eightGPUs(t, time.Hour, nil)
	defer session.End()
	complete := func() bool {
		snapshot, err := session.Read(t.Context())
		return err == nil && len(snapshot.GPUs) == fake.GPUs &&
			!slices.ContainsFunc(snapshot.GPUs, func(g model.GPU) bool { return !g.PCIe.Width.Known })
	}
	for end := time.Now().Add(nvmltest.Long); !complete(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the GPUs do not answer")
		}
	}
	time.Sleep(100 * time.Millisecond) // until the first round has ended
	before := calls()
	if !complete() {
		t.Fatal("the GPUs do not answer any more")
	}
	sum := 0.0
	for function, n := range calls().Since(before).Functions() {
		if strings.HasPrefix(function, "nvmlDevice") {
			sum += float64(n)
		}
	}
	return sum
}

// TestSlowRounds checks that the first complete round reads what changes rarely, also if the driver returned no handle
// when a round began, or the GPU was suspended meanwhile, and which rounds follow.
func TestSlowRounds(t *testing.T) {
	handle := nvmltest.Missing(&mock.Device{GetUUIDFunc: func() (string, nvml.Return) { return "GPU-1", nvml.SUCCESS }})
	ret := nvml.ERROR_TIMEOUT
	l := mocked(nvmltest.Missing(&mock.Interface{
		DeviceGetHandleByPciBusIdFunc: func(string) (nvml.Device, nvml.Return) { return handle, ret },
	}))
	const address = "0000:c1:00.0"
	o := wire.Options{Sysfs: t.TempDir(), Procfs: t.TempDir()}
	status := filepath.Join(o.Sysfs, "bus/pci/devices", address, "power/runtime_status")
	if err := os.MkdirAll(filepath.Dir(status), 0o700); err != nil {
		t.Fatal(err)
	}
	power := func(now string) {
		if err := os.WriteFile(status, []byte(now+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	asked := 0
	handle.GetComputeModeFunc = func() (nvml.ComputeMode, nvml.Return) {
		asked++
		return nvml.COMPUTEMODE_DEFAULT, nvml.SUCCESS
	}
	c := &caller{worker: newWorker(time.Hour, 0), notify: func(error) {}}
	dev := newDevice(o, l, c, newXIDWatch(wire.NewXIDs()))
	dev.address = address
	dev.shown.facts = recall(o, address, 0)
	dev.identify()
	round := func(between func()) {
		for i, step := range dev.steps() {
			if step(); i == 0 {
				between()
			}
		}
	}
	nothing := func() {}
	expect := func(what string, want ...int) {
		t.Helper()
		for i, n := range want {
			if i > 0 {
				round(nothing)
			}
			if asked != n {
				t.Errorf("%s, after %d rounds: modes were read %d times, want %d", what, i, asked, n)
			}
		}
		asked = 0
	}
	round(func() {
		ret = nvml.SUCCESS
		dev.answer() // a scrape gets the handle
	})
	asked = 0
	expect("a late handle", 0, 1, 1, 1, 1, 1, 1, 2)
	power("suspended")
	round(func() { power("active") })
	expect("suspended meanwhile", 1, 2, 2)
	if dev.shown.facts.Modes["compute"] != "default" {
		t.Errorf("modes %v", dev.shown.facts.Modes)
	}
}
