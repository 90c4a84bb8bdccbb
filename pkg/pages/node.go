// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"bytes"
	"fmt"
	"html/template"
	"net/http"
	"sync"
	"time"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/pkg/verdict"
	"github.com/accelscope/accelscope/pkg/web"
)

// nodeView is the page of the node: the table, and what is above and below it.
type nodeView struct {
	Rates        string
	Usage        usage
	Above, Below template.HTML
}

// nodeRest is what of the page does not depend on the query.
type nodeRest struct {
	Totals   []total
	Verdicts []web.Verdict
	Omitted  int
	Map      topology
	History  historyView
	Doctor   doctor
}

// nodePage makes what does not depend on the query once for a refresh: viewers who search or sort pay for the table only.
type nodePage struct {
	mu           sync.Mutex
	at           time.Time
	table        overview.Table
	devices      []overview.Device
	above, below template.HTML
}

// total is a figure of all that the page shows.
type total struct{ Name, Value, About string }

// node shows the node.
func (p *nodePage) node(r *http.Request, k *api.Known) (title string, view any, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.at.Equal(k.At) || k.At.IsZero() {
		if err := p.make(k); err != nil {
			return "", nil, err
		}
	}
	return "Node", nodeView{
		Rates: ratesOf(&p.table), Usage: usageOf(queryOf(r.URL.Query()), &p.table, p.devices), Above: p.above, Below: p.below,
	}, nil
}

// make makes the parts of a refresh.
func (p *nodePage) make(k *api.Known) error {
	p.at = time.Time{}
	p.table, p.devices = k.Recorder.Table(k.At, &k.Facts, &k.Shares), k.Recorder.Devices(&k.Facts, &k.Shares)
	rest := nodeRest{
		Totals:   totals(&p.table, p.devices),
		Verdicts: verdictViews(k.Verdicts.Verdicts, k.At, nil), Omitted: k.Verdicts.Omitted,
		Map:     topologyOf(k, p.devices, p.table.Rows),
		History: historyOf(k.Recorder, func(s *overview.Series) bool { return s.Whole }),
		Doctor:  doctorOf(k, p.table.Rows),
	}
	for name, to := range map[string]*template.HTML{"above": &p.above, "below": &p.below} {
		var text bytes.Buffer
		if err := templates().ExecuteTemplate(&text, name, rest); err != nil {
			return err
		}
		*to = template.HTML(text.String()) //nolint:gosec // html/template has escaped it
	}
	p.at = k.At
	return nil
}

// ratesOf returns the text about the interval of rates.
func ratesOf(t *overview.Table) string {
	if t.RatesSeconds == nil {
		return "rates need a second refresh"
	}
	return fmt.Sprintf("rates of the %.0f s until %s", *t.RatesSeconds, t.RatesUntil.Format("15:04:05 UTC"))
}

// totals returns the figures of the node: its workloads, GPUs and ports.
func totals(t *overview.Table, devices []overview.Device) []total {
	workloads := map[string]bool{}
	used, allocated := map[string]bool{}, map[string]bool{}
	for i := range t.Rows {
		r := &t.Rows[i]
		if r.Workload == "" {
			continue
		}
		workloads[r.Workload+"\x00"+r.ContainerID] = true
		used[r.Device] = used[r.Device] || r.Processes != nil && *r.Processes > 0
		allocated[r.Device] = allocated[r.Device] || r.Allocated
	}
	var gpus, busy, given, ports, up, unknown int
	for i := range devices {
		d := &devices[i]
		if d.Kind == overview.GPU {
			gpus++
			if used[d.Device] {
				busy++
			}
			if allocated[d.Device] {
				given++
			}
		}
		for _, p := range d.Ports {
			ports++
			switch p.State {
			case "ACTIVE":
				up++
			case "":
				unknown++
			}
		}
	}
	out := []total{{"Workloads", fmt.Sprint(len(workloads)), "use an HCA or a GPU"}}
	if gpus > 0 {
		out = append(out, total{"GPUs and parts", fmt.Sprint(gpus), fmt.Sprintf("%d in use, %d allocated", busy, given)})
	}
	if ports > 0 {
		about := fmt.Sprintf("%d active", up)
		if unknown > 0 {
			about += fmt.Sprintf(", %d unknown", unknown)
		}
		out = append(out, total{"RDMA ports", fmt.Sprint(ports), about})
	}
	var sent, received float64
	for _, d := range t.Devices {
		sent, received = sent+max(0, perSecond(d.Transmit)), received+max(0, perSecond(d.Receive))
	}
	if len(t.Devices) > 0 {
		out = append(out, total{"All ports out", format.Size(sent) + "/s", "counters of the ports"},
			total{"All ports in", format.Size(received) + "/s", "counters of the ports"})
	}
	return out
}

// verdictViews formats the verdicts that are selected, worst first; nil selects all.
func verdictViews(all []verdict.Verdict, now time.Time, selected func(*verdict.Subject) bool) []web.Verdict {
	var out []web.Verdict
	for i := range all {
		v := &all[i]
		if selected != nil && !selected(&v.Subject) {
			continue
		}
		line := web.Verdict{
			Severity: string(v.Severity), Name: v.Name, Subject: format.Escape(v.Subject.String()), Summary: v.Summary,
			Since: v.Since, Runbook: v.Runbook,
		}
		for _, e := range v.Evidence.Texts() {
			line.Evidence = append(line.Evidence, format.Escape(e))
		}
		if !v.Since.IsZero() {
			line.For = web.Age(now.Sub(v.Since))
		}
		switch s := &v.Subject; {
		case s.Kind == verdict.OfWorkload:
			line.Link = web.WorkloadLink(s.Owner.Workload, s.Owner.ContainerID)
		case s.Kind == verdict.OfGPU && s.UUID != "":
			line.Link = web.DeviceLink(s.UUID)
		case s.Kind == verdict.OfHCA || s.Kind == verdict.OfPort:
			line.Link = web.DeviceLink(s.Device)
		}
		out = append(out, line)
	}
	return out
}
