// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/pkg/verdict"
	"github.com/accelscope/accelscope/pkg/web"
)

// Limits of detail views.
const (
	maxPeers  = 200
	maxFaults = 50
)

// detail is the page of a workload or a device.
type detail struct {
	Name, About string
	Facts       []fact
	Verdicts    []web.Verdict
	Tables      []deviceTable
	History     historyView
	Histograms  []histogram
	Peers       []peer
	PeersNote   string
	Faults      []fault
	FaultsNote  string
	Events      []happening
	EventsNote  string
	Figures     []figure
	FiguresNote string
}

type fact struct{ Name, Value string }

type peer struct {
	Workload, Link, Device, QPN, State, Remote string
	Queues                                     int
	Stalled                                    string
}

type fault struct {
	Time                 time.Time
	Device, Code, Text   string
	Workload, Link       string
	Repeated             uint64
	Recovered, Beginning bool
}

// happening is an event.
type happening struct {
	Time                               time.Time
	Name, Text, Workload, Link, Device string
}

// workload shows one workload, ?name= and ?id=; the empty name is the unattributed share.
func (o Options) workload(r *http.Request, k *api.Known) (title string, view any, err error) {
	name, id := r.URL.Query().Get("name"), r.URL.Query().Get("id")
	selected := func(workload, containerID string) bool { return workload == name && (id == "" || containerID == id) }
	v := detail{Name: format.Owner(name), About: "unattributed: what belongs to no known workload"}
	if name != "" {
		v.About = "workload"
	}
	owners := map[int]bool{}
	for i := range k.Shares.Owners {
		if w := &k.Shares.Owners[i]; selected(w.Workload, w.ContainerID) {
			owners[i] = true
			v.identity(w)
		}
	}
	for i := range k.Shares.Infos {
		if info := &k.Shares.Infos[i]; owners[info.Owner] {
			v.info(&info.Info)
		}
	}
	if len(owners) == 0 {
		v.About = "The node has no such workload now. Workloads that ended keep their names for a few minutes."
	}
	v.rows(k, func(r *overview.Row) bool { return selected(r.Workload, r.ContainerID) })
	v.History = historyOf(k.Recorder, func(s *overview.Series) bool { return !s.Whole && selected(s.Workload, s.ContainerID) })
	v.Histograms = histogramsOf(&k.Shares, func(owner int, _ string) bool { return owners[owner] })
	v.Verdicts = verdictViews(k.Verdicts.Verdicts, k.At, func(s *verdict.Subject) bool {
		return s.Kind == verdict.OfWorkload && selected(s.Owner.Workload, s.Owner.ContainerID)
	})
	o.peersOf(&v, func(p *attribution.PeerShare) bool { return selected(p.Workload, p.ContainerID) })
	v.faults(k, func(f *attribution.FaultRecord) bool { return selected(f.Owner.Workload, f.Owner.ContainerID) })
	v.events(k, func(e *model.RecentEvent) bool { return name != "" && selected(e.Workload, e.ContainerID) })
	pairs := []pair{{"workload", name}}
	if id != "" {
		pairs = []pair{{"container_id", id}}
	}
	o.figures(&v, pairs...)
	return v.Name, v, nil
}

// device shows one device, ?name= the name of an HCA or the UUID of a GPU.
func (o Options) device(r *http.Request, k *api.Known) (title string, view any, err error) {
	name := r.URL.Query().Get("name")
	v := detail{Name: format.Escape(name), About: "The node has no such device now."}
	devices := k.Recorder.Devices(&k.Facts, &k.Shares)
	for i := range devices {
		d := &devices[i]
		if d.Device == name {
			v.Name, v.About = deviceName(d.Kind, d.Device, d.Vendor, d.GPU), "device"
			v.describe(d)
			v.place(k, cmp.Or(d.Parent, d.Device))
		}
	}
	if name == "" {
		v.Name, v.About = "Devices", "all devices of the node"
	}
	v.rows(k, func(r *overview.Row) bool { return name == "" || r.Device == name })
	if name == "" {
		return v.Name, v, nil
	}
	v.History = historyOf(k.Recorder, func(s *overview.Series) bool { return s.Whole && s.Device == name })
	v.Histograms = histogramsOf(&k.Shares, func(_ int, device string) bool { return device == name })
	v.Verdicts = verdictViews(k.Verdicts.Verdicts, k.At, func(s *verdict.Subject) bool { return s.Device == name || s.UUID == name })
	o.peersOf(&v, func(p *attribution.PeerShare) bool { return p.Device == name })
	v.faults(k, func(f *attribution.FaultRecord) bool { return f.HCA == name || f.FaultDevice.UUID == name })
	v.events(k, func(e *model.RecentEvent) bool { return e.Device == name })
	o.figures(&v, pair{"device", name}, pair{"uuid", name})
	return v.Name, v, nil
}

func (v *detail) add(name, value string) {
	if value != "" {
		v.Facts = append(v.Facts, fact{format.Escape(name), format.Escape(value)})
	}
}

func (v *detail) identity(o *identity.Owner) {
	v.add("namespace", o.Namespace)
	v.add("pod", o.Pod)
	v.add("container", o.Container)
	v.add("container ID", o.ContainerID)
}

func (v *detail) info(i *identity.Info) {
	v.add("pod UID", i.PodUID)
	v.add("runtime", i.Runtime)
	v.add("image", i.Image)
	v.add("user", i.User)
	if i.Job.Name != "" {
		v.add("job", i.Job.Kind+"/"+i.Job.Name)
		v.add("queue", i.Job.Queue)
		v.add("rank", i.Job.Rank)
	}
	v.add("cgroup", string(i.Cgroup))
	for _, name := range slices.Sorted(maps.Keys(i.Labels)) {
		v.add("label "+name, i.Labels[name])
	}
}

func (v *detail) describe(d *overview.Device) {
	v.add("model", d.Name)
	if d.Kind == overview.GPU {
		v.add("UUID", d.Device)
	}
	v.add("part of", d.Parent)
	v.add("physical function", d.PF)
	for _, p := range d.Ports {
		link := "state not known"
		if p.State != "" {
			link = fmt.Sprintf("%s %s %.4g Gb/s", p.State, p.PhysState, p.RateBits/1e9)
		}
		v.add(fmt.Sprintf("port %d", p.Number), fmt.Sprintf("%s %s %s", link, p.LinkLayer, p.Interface))
	}
	if d.Utilization != nil {
		v.add("utilization", format.Percent(*d.Utilization))
	}
	if d.Memory != nil && d.MemoryTotal != nil {
		v.add("memory", format.Size(*d.Memory)+" of "+format.Size(*d.MemoryTotal))
	}
	for _, p := range d.Problems {
		v.add("problem", p)
	}
}

// place adds where a device is.
func (v *detail) place(k *api.Known, device string) {
	p := k.Placement.Placement()
	for i := range p.Devices {
		d := &p.Devices[i]
		if keyOf(d) != device {
			continue
		}
		v.add("PCI address", d.PCIAddress)
		v.add("NUMA node", d.NUMANode)
		v.add("PCIe path", strings.Join(d.Path, " "))
		if l := &d.Link; l.Width > 0 {
			text := fmt.Sprintf("x%d at %.4g GT/s; both ends support x%d at %.4g GT/s", l.Width, l.Speed/1e9, l.MaxWidth, l.MaxSpeed/1e9)
			if d.Degraded() {
				text += "; degraded"
			}
			v.add("PCIe link", text)
		}
	}
}

func (v *detail) rows(k *api.Known, selected func(*overview.Row) bool) {
	table := k.Recorder.Table(k.At, &k.Facts, &k.Shares)
	rates, models := ofDevices(k.Recorder.Devices(&k.Facts, &k.Shares))
	var rows []row
	for i := range table.Rows {
		if r := &table.Rows[i]; selected(r) {
			rows = append(rows, rowOf(r, rates[r.Device], models[r.Device]))
		}
	}
	v.Tables = tablesOf(rows, nil, plainHeads)
}

// peersOf lists the connected queue pairs, those to one remote port in one row.
func (o Options) peersOf(v *detail, selected func(*attribution.PeerShare) bool) {
	if o.Peers == nil {
		return
	}
	all, err := o.Peers()
	if err != nil {
		v.PeersNote = "Peers are not known: " + format.Escape(err.Error())
		return
	}
	type group struct{ workload, id, device, remote, state string }
	at := map[group]int{}
	for i := range all {
		p := &all[i]
		if !selected(p) {
			continue
		}
		remote := p.RemoteGID
		if remote == "" && p.RemoteLID != 0 {
			remote = fmt.Sprint("LID ", p.RemoteLID)
		}
		g := group{p.Workload, p.ContainerID, p.Device, cmp.Or(remote, "(not known)"), p.State}
		n, ok := at[g]
		if !ok {
			if len(v.Peers) == maxPeers {
				v.PeersNote = fmt.Sprintf("The first %d; accelscope peers lists all.", maxPeers)
				continue
			}
			n = len(v.Peers)
			at[g] = n
			v.Peers = append(v.Peers, peer{
				Workload: format.Owner(p.Workload), Link: web.WorkloadLink(p.Workload, p.ContainerID), Device: format.Escape(p.Device),
				Remote: format.Escape(g.remote), State: format.Escape(p.State),
			})
		}
		v.Peers[n].Queues++
		if p.StalledFor > 0 {
			v.Peers[n].Stalled = web.Age(p.StalledFor)
		}
	}
}

// faults lists the last faults, the newest first.
func (v *detail) faults(k *api.Known, selected func(*attribution.FaultRecord) bool) {
	if k.Shares.FaultHistory == nil {
		v.FaultsNote = "The kernel log is not read: see Doctor on the page of the node."
		return
	}
	for i := len(k.Shares.FaultHistory) - 1; i >= 0 && len(v.Faults) < maxFaults; i-- {
		f := &k.Shares.FaultHistory[i]
		if !selected(f) {
			continue
		}
		v.Faults = append(v.Faults, fault{
			Time: f.Last.UTC(), Device: format.Escape(cmp.Or(f.HCA, f.GPU, f.PCIAddress)),
			Code:     string(f.Driver) + " " + format.Escape(f.Code),
			Text:     format.Escape(f.Text),
			Workload: format.Owner(f.Owner.Workload), Link: web.WorkloadLink(f.Owner.Workload, f.Owner.ContainerID),
			Repeated: f.Repeated, Recovered: f.Recovered, Beginning: f.Earlier,
		})
	}
}

// events lists the last events, the newest first.
func (v *detail) events(k *api.Known, selected func(*model.RecentEvent) bool) {
	if k.Facts.Events == nil {
		v.EventsNote = "Events are not sent (--events.otlp-endpoint), and so not kept."
		return
	}
	for _, e := range slices.Backward(k.Facts.Events.Recent) {
		if !selected(&e) {
			continue
		}
		one := happening{Time: e.Time.UTC(), Name: format.Escape(e.Name), Text: format.Escape(e.Text), Device: format.Escape(e.Device)}
		if e.Reconciled {
			one.Text += " (found later)"
		}
		if e.Workload != "" {
			one.Workload, one.Link = format.Owner(e.Workload), web.WorkloadLink(e.Workload, e.ContainerID)
		}
		v.Events = append(v.Events, one)
	}
}

func (o Options) figures(v *detail, pairs ...pair) {
	if o.Series == nil {
		return
	}
	text, err := o.Series()
	if err != nil {
		v.FiguresNote = "The metrics could not be encoded: " + format.Escape(err.Error())
		return
	}
	v.Figures = figuresOf(text, pairs...)
	if len(v.Figures) == maxFigures {
		v.FiguresNote = fmt.Sprintf("The first %d; the metrics have all.", maxFigures)
	}
}

// The size of the picture of a histogram.
const (
	barWidth        = 14
	histogramHeight = 80
)

// histogram is the durations of calls or completions since the sensor started.
type histogram struct {
	Name, Count, P99 string
	Bars             []bar
	Width, Height    int
}

type bar struct {
	X, Y, H int
	Title   string
	Label   string // below some bars
}

// histogramsOf adds up the durations of verbs, and of completions by opcode.
func histogramsOf(shares *attribution.Attribution, selected func(owner int, device string) bool) []histogram {
	var verbs model.Histogram
	for i := range shares.Verbs {
		if s := &shares.Verbs[i]; selected(s.Owner, s.Key.Device) {
			verbs.Add(&s.Value)
		}
	}
	completions := map[string]*model.FineHistogram{}
	for i := range shares.Completions {
		s := &shares.Completions[i]
		if !selected(s.Owner, s.Key.Device) {
			continue
		}
		if completions[s.Key.Opcode] == nil {
			completions[s.Key.Opcode] = &model.FineHistogram{}
		}
		completions[s.Key.Opcode].Add(&s.Value)
	}
	var out []histogram
	if verbs.Count > 0 {
		out = append(out, draw("Verbs", verbs.Buckets[:], model.HistogramMinExp, quantile(overview.VerbsQuantile(&verbs))))
	}
	for _, opcode := range slices.Sorted(maps.Keys(completions)) {
		h := completions[opcode]
		if h.Count > 0 {
			name := "Completions of " + format.Escape(opcode)
			out = append(out, draw(name, octaves(h), model.FineMinExp, quantile(overview.CompletionQuantile(h))))
		}
	}
	return out
}

// octaves adds up the buckets of each power of two.
func octaves(h *model.FineHistogram) []uint64 {
	out := make([]uint64, model.FineMaxExp-model.FineMinExp+2)
	for i, n := range h.Buckets {
		out[(i+model.FineOctave-1)/model.FineOctave] += n
	}
	return out
}

// draw draws buckets that end at powers of two of a second, from the first to the last one that is not empty.
func draw(name string, buckets []uint64, exponent int, p99 string) histogram {
	h := histogram{Name: name, P99: p99, Height: histogramHeight}
	first, last, most, total := -1, 0, uint64(0), uint64(0)
	for i, n := range buckets {
		total += n
		most = max(most, n)
		if n > 0 {
			if first < 0 {
				first = i
			}
			last = i
		}
	}
	h.Count = web.Number(total)
	for i := max(first, 0); i <= last; i++ {
		up := format.Duration(math.Exp2(float64(i + exponent)))
		text := "up to " + up
		if i == len(buckets)-1 {
			text = "more than " + format.Duration(math.Exp2(float64(i-1+exponent)))
		}
		height := web.Width(float64(buckets[i]), float64(most)) * (histogramHeight - 4) / 100
		if buckets[i] > 0 {
			height = max(height, 1)
		}
		b := bar{X: (i - first) * barWidth, Y: histogramHeight - height, H: height, Title: text + ": " + web.Number(buckets[i])}
		if (i-first)%4 == 0 {
			b.Label = up
		}
		h.Bars = append(h.Bars, b)
	}
	h.Width = max(len(h.Bars)*barWidth+40, 120)
	return h
}
