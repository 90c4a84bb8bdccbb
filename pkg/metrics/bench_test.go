// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

// big returns sources with fixed facts: benchmarks measure everything except reading.
func big(ports, containers int) []engine.Registration {
	var s model.Snapshot
	for i := range ports {
		h := model.HCA{Name: fmt.Sprint("mlx5_", i), Firmware: "28.39.1002", Type: "MT4129"}
		p := model.Port{Number: 1, State: "ACTIVE", PhysState: "LinkUp", RateBits: 400e9, Width: 4}
		for _, e := range model.PortErrors {
			p.Counters = append(p.Counters, model.Counter{Name: e.Counter, Value: uint64(i)})
		}
		for _, name := range []string{
			"port_rcv_data", "port_xmit_data", "port_rcv_packets", "port_xmit_packets", "unicast_rcv_packets",
			"unicast_xmit_packets", "multicast_rcv_packets", "multicast_xmit_packets", "port_xmit_wait",
		} {
			p.Counters = append(p.Counters, model.Counter{Name: name, Value: uint64(i) << 30})
		}
		for n := range 30 {
			p.HWCounters = append(p.HWCounters, model.Counter{Name: fmt.Sprint("hw_counter_", n), Value: uint64(n)})
		}
		h.Ports = []model.Port{p}
		s.HCAs = append(s.HCAs, h)
		for _, typ := range objectTypes {
			s.Resources = append(s.Resources, model.Resource{Device: h.Name, Type: typ, Count: 1000})
		}
	}
	probe := model.Snapshot{
		Objects: []model.Objects{}, Registered: []model.Registered{},
		VerbErrors: []model.Series[model.VerbErrorKey, model.Count]{},
	}
	entities := map[model.CgroupID]identitytest.Entity{}
	for c := range containers {
		id := uint64(c + 1)
		entities[model.CgroupID(id)] = identitytest.Entity{
			Workload: fmt.Sprint("ml/train-", c, "/main"), Namespace: "ml", Pod: fmt.Sprint("train-", c), Container: "main",
			ContainerID: fmt.Sprintf("%064d", c), Runtime: "containerd", Cgroup: fmt.Sprint("/kubepods/", c),
		}
		device := fmt.Sprint("mlx5_", c%ports)
		for _, typ := range objectTypes {
			probe.Objects = append(probe.Objects, model.Objects{Cgroup: model.CgroupID(id), Device: device, Type: typ, Current: 1})
			probe.Created = append(probe.Created, created(model.CgroupID(id), device, typ, 2))
		}
		probe.Registered = append(probe.Registered,
			model.Registered{Cgroup: model.CgroupID(id), Device: device, Memory: model.HostMemory, Bytes: 1 << 30})
		for _, verb := range []string{"reg_mr", "dereg_mr", "create_cq", "create_qp", "modify_qp", "alloc_pd"} {
			h := model.Histogram{Count: 3, Sum: 1e5}
			h.Buckets[4], h.Buckets[5] = 2, 1
			probe.Verbs = append(probe.Verbs, verbs(model.CgroupID(id), device, verb, h))
		}
	}
	return []engine.Registration{
		{Source: &fake{name: "rdma", facts: s}},
		{Source: &fake{name: "probe", facts: probe}},
		{Source: answering(entities)},
	}
}

func answering(entities map[model.CgroupID]identitytest.Entity) *fakeNames {
	n := names(nil)
	s := *identitytest.Facts(entities)
	for i := range s.Cgroups { // as paths name them: the source of containers is another benchmark
		s.Cgroups[i].Workload = entities[s.Cgroups[i].ID].Workload
	}
	s.Containers = nil
	n.resolve = func(context.Context, []model.CgroupID) (model.Snapshot, error) { return s, nil }
	return n
}

// withGPUs adds GPUs with all values of NVIDIA, and processes of the containers on each GPU.
func withGPUs(sources []engine.Registration, gpus, processes, containers int) []engine.Registration {
	var s model.Snapshot
	some := model.Some
	list := func(names ...string) (figures []model.Figure) {
		for _, name := range names {
			figures = append(figures, model.Figure{Name: name, Value: 0.5})
		}
		return figures
	}
	engines := []string{"sm", "memory", "encoder", "decoder"}
	for i := range gpus {
		g := nvidiaFacts().GPUs[0]
		g.ID, g.UUID, g.Nodes = fmt.Sprint(i), fmt.Sprint("GPU-", i), []string{fmt.Sprint("/dev/nvidia", i)}
		g.Engines, g.Memory.Used = list(engines...), some(0)
		g.Links = nil
		for l := range 18 {
			g.Links = append(g.Links, model.GPULink{
				Kind: model.NVLink, Number: l, Up: some(1), Receive: some(1), Transmit: some(1),
				Errors: []model.Counter{{Name: "replay"}, {Name: "recovery"}, {Name: "crc_flit"}, {Name: "crc_data"}},
			})
		}
		s.GPUs = append(s.GPUs, g)
	}
	s.GPUProcesses = []model.GPUProcess{}
	for i := range processes {
		s.GPUProcesses = append(s.GPUProcesses, model.GPUProcess{
			GPU: fmt.Sprint("GPU-", i%gpus), PID: i + 1, Cgroup: model.CgroupID(i%containers + 1), Memory: some(1 << 30), Engines: list(engines...),
		})
	}
	return append(sources, engine.Registration{Source: &fake{name: "nvidia", facts: s}})
}

var objectTypes = []model.ObjectType{model.PD, model.CQ, model.QP, model.MR, model.Context}

var nodesToMeasure = []struct {
	name              string
	ports, containers int
	gpus, processes   int
}{
	{"10-ports", 10, 0, 0, 0},
	{"10-ports-8-containers", 10, 8, 0, 0},
	{"10-ports-40-containers-8-GPUs-200-processes", 10, 40, 8, 200},
	{"138-ports-500-containers", 138, 500, 0, 0},
}

func sources(i int) []engine.Registration {
	n := nodesToMeasure[i]
	s := big(n.ports, n.containers)
	if n.gpus > 0 {
		s = withGPUs(s, n.gpus, n.processes, n.containers)
	}
	return s
}

// BenchmarkRefresh measures the time to build families, and the memory in use afterwards, including the facts.
func BenchmarkRefresh(b *testing.B) {
	for i, n := range nodesToMeasure {
		b.Run(n.name, func(b *testing.B) {
			c := newCollector(setup{Sources: sources(i), Compat: []string{CompatLens}, Reuse: time.Nanosecond})
			defer c.Close() //nolint:errcheck // nothing to lose
			b.ReportAllocs()
			series := 0
			for b.Loop() {
				series = 0
				for _, f := range c.now(b) {
					series += f.Len()
				}
			}
			b.ReportMetric(float64(series), "series")
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			b.ReportMetric(float64(m.HeapAlloc)/1e6, "live-MB")
			runtime.KeepAlive(c)
		})
	}
}

// move adds to 15 counters of each port, about as many as move on a busy port.
func move(rdma *fake) {
	for i := range rdma.facts.HCAs {
		p := &rdma.facts.HCAs[i].Ports[0]
		for k := range p.Counters[:5] {
			p.Counters[k].Value += uint64(k)
		}
		for k := range p.HWCounters[:10] {
			p.HWCounters[k].Value += uint64(1000 * k)
		}
	}
}

// BenchmarkScrape measures a scrape, from facts to bytes. Counters move between scrapes.
func BenchmarkScrape(b *testing.B) {
	for i, n := range nodesToMeasure {
		for _, f := range []struct {
			name     string
			format   expfmt.Format
			compress bool
		}{
			{"gzip=false", expfmt.NewFormat(expfmt.TypeOpenMetrics), false},
			{"gzip=true", expfmt.NewFormat(expfmt.TypeOpenMetrics), true},
			{"protobuf, gzip=true", expfmt.NewFormat(expfmt.TypeProtoDelim), true},
		} {
			b.Run(n.name+"/"+f.name, func(b *testing.B) {
				s := sources(i)
				c := newCollector(setup{Sources: s, Compat: []string{CompatLens}, Reuse: time.Nanosecond})
				defer c.Close() //nolint:errcheck // nothing to lose
				b.ReportAllocs()
				size := 0
				for b.Loop() {
					move(s[0].Source.(*fake))
					body, err := c.Encode(f.format, f.compress)
					if err != nil {
						b.Fatal(err)
					}
					size = len(body)
				}
				b.ReportMetric(float64(size), "wire-B")
			})
		}
	}
}

// BenchmarkStarts measures a scrape of workloads that began after the first refresh: their counters have a start
// timestamp.
func BenchmarkStarts(b *testing.B) {
	for _, known := range []bool{false, true} {
		b.Run(fmt.Sprint("known=", known), func(b *testing.B) {
			s := sources(2)
			probe := s[1].Source.(*fake)
			facts := probe.facts
			probe.facts = model.Snapshot{
				Created: []model.Series[model.ObjectKey, model.Count]{}, Verbs: []model.Series[model.VerbKey, model.Histogram]{},
				VerbErrors: []model.Series[model.VerbErrorKey, model.Count]{},
			}
			c := newCollector(setup{Sources: s, Compat: []string{CompatLens}, Reuse: time.Nanosecond})
			defer c.Close() //nolint:errcheck // nothing to lose
			if known {
				c.now(b)
			}
			probe.facts = facts
			b.ReportAllocs()
			size := 0
			for b.Loop() {
				body, err := c.Encode(expfmt.NewFormat(expfmt.TypeProtoDelim), true)
				if err != nil {
					b.Fatal(err)
				}
				size = len(body)
			}
			b.ReportMetric(float64(size), "wire-B")
		})
	}
}
