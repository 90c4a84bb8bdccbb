// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/pkg/web"
)

// maxRows is the number of rows of the first view; a link shows all.
const maxRows = 60

// gpuColumns and hcaColumns are the columns of the two tables. A column without an order cannot be sorted.
var (
	gpuColumns = []column{
		{"workload", "Workload", false, nil},
		{"device", "GPU", false, nil},
		{"memory", "Memory", true, func(r *overview.Row) float64 { v, _ := r.Used(); return v }},
		{"utilization", "Utilization", true, func(r *overview.Row) float64 { return value(r.Utilization) }},
	}
	hcaColumns = []column{
		{"workload", "Workload", false, nil},
		{"device", "HCA", false, nil},
		{"memory", "Registered memory", true, func(r *overview.Row) float64 { v, _ := r.Used(); return v }},
		{"out", "Out", true, func(r *overview.Row) float64 { return perSecond(r.Transmit) }},
		{"in", "In", true, func(r *overview.Row) float64 { return perSecond(r.Receive) }},
		{"qps", "QPs", true, func(r *overview.Row) float64 { return count(r.QueuePairs) }},
		{"verbs", "Verbs p99", true, func(r *overview.Row) float64 { return seconds(r.VerbsP99) }},
		{"completions", "Completion p99", true, func(r *overview.Row) float64 { return seconds(r.CompletionP99) }},
		{"errors", "Errors", true, func(r *overview.Row) float64 { return count(r.Errors) + count(r.CompletionErrors) }},
	}
	// orders are what the form can sort by.
	orders = []column{
		{"workload", "workload", false, nil},
		{"device", "device", false, nil},
		gpuColumns[2], gpuColumns[3],
		hcaColumns[3], hcaColumns[4], hcaColumns[5], hcaColumns[6], hcaColumns[7], hcaColumns[8],
	}
)

type column struct {
	key, Name string
	Number    bool
	of        func(*overview.Row) float64 // nil for a name
}

func value(v *float64) float64 {
	if v == nil {
		return -1
	}
	return *v
}

func count(v *uint64) float64 {
	if v == nil {
		return -1
	}
	return float64(*v)
}

func perSecond(r *overview.Rate) float64 {
	if r == nil {
		return -1
	}
	return r.PerSecond
}

func seconds(q *overview.Quantile) float64 {
	if q == nil {
		return -1
	}
	return q.Seconds
}

// usage is who uses what.
type usage struct {
	Tables            []deviceTable
	Query             query
	Namespaces        []choice
	Jobs              []choice
	Sorts             []choice
	Found, All, Shown int
	ShowAll           string // link to all rows, empty if they are shown
}

// deviceTable has the rows of GPUs or of HCAs.
type deviceTable struct {
	Title, ID    string
	Heads        []head
	Rows         []row
	Unattributed []row
}

// tablesOf divides rows into the tables of GPUs and of HCAs. A table without a row is left out.
func tablesOf(rows, unattributed []row, headsOf func([]column) []head) []deviceTable {
	tables := []deviceTable{
		{Title: "GPUs", ID: "h-gpus", Heads: headsOf(gpuColumns)},
		{Title: "HCAs", ID: "h-hcas", Heads: headsOf(hcaColumns)},
	}
	at := func(r *row) *deviceTable {
		if r.GPU {
			return &tables[0]
		}
		return &tables[1]
	}
	for i := range rows {
		t := at(&rows[i])
		t.Rows = append(t.Rows, rows[i])
	}
	for i := range unattributed {
		t := at(&unattributed[i])
		t.Unattributed = append(t.Unattributed, unattributed[i])
	}
	return slices.DeleteFunc(tables, func(t deviceTable) bool { return len(t.Rows)+len(t.Unattributed) == 0 })
}

// plainHeads returns the headings of columns that cannot be sorted.
func plainHeads(columns []column) []head {
	heads := make([]head, len(columns))
	for i, c := range columns {
		heads[i] = head{column: column{Name: c.Name}}
	}
	return heads
}

type head struct {
	column
	Link string
	Sort string // ascending, descending or none, as in aria-sort; empty: the column cannot be sorted
}

// choice is an option of a list.
type choice struct {
	Value, Text string
	Chosen      bool
}

// row is a row of a table.
type row struct {
	Name, Link, About      string
	Device, DeviceLink     string
	Model                  string // of a GPU
	Kind                   overview.Kind
	Memory, MemoryAbout    string
	MemoryBar              int
	Utilization            string
	UtilizationBar         int
	Out, In                string
	OutBar, InBar          int
	Method, Coverage       string
	Partial                bool // bytes are missing
	QPs, Verbs             string
	VerbsP99, Completion   string
	Errors, ErrorsAbout    string
	HasErrors, GPU, Direct bool
}

// query is what the form of the table sends.
type query struct {
	Text, Namespace, Job, Sort, Order, All string
}

func queryOf(v url.Values) query {
	q := query{v.Get("q"), v.Get("namespace"), v.Get("job"), v.Get("sort"), v.Get("order"), v.Get("all")}
	if !slices.ContainsFunc(orders, func(c column) bool { return c.key == q.Sort }) {
		q.Sort = ""
	}
	if q.Order != "asc" && q.Order != "desc" {
		q.Order = ""
	}
	return q
}

// link returns the link to the node page with a query.
func (q query) link() string {
	v := url.Values{}
	for name, text := range map[string]string{
		"q": q.Text, "namespace": q.Namespace, "job": q.Job, "sort": q.Sort, "order": q.Order, "all": q.All,
	} {
		if text != "" {
			v.Set(name, text)
		}
	}
	if len(v) == 0 {
		return "/#usage"
	}
	return "/?" + v.Encode() + "#usage"
}

// matches reports whether a row is selected. The text is searched in all names, without regard to case.
func (q query) matches(r *overview.Row) bool {
	if q.Namespace != "" && r.Namespace != q.Namespace || q.Job != "" && jobName(r) != q.Job {
		return false
	}
	text := strings.ToLower(q.Text)
	device := deviceName(r.Kind, r.Device, r.Vendor, r.GPU)
	for _, name := range []string{r.Workload, r.Device, device, r.ContainerID, r.JobKind + "/" + r.Job} {
		if strings.Contains(strings.ToLower(name), text) {
			return true
		}
	}
	return false
}

func jobName(r *overview.Row) string {
	if r.Job == "" {
		return ""
	}
	return r.JobKind + "/" + r.Job
}

// usageOf selects and sorts the rows of the tables. Unattributed shares are always shown.
func usageOf(q query, t *overview.Table, devices []overview.Device) usage {
	u := usage{Query: q}
	rates, models := ofDevices(devices)
	namespaces, jobs := map[string]bool{}, map[string]bool{}
	var found []*overview.Row
	var unattributed []row
	for i := range t.Rows {
		r := &t.Rows[i]
		if r.Workload == "" {
			unattributed = append(unattributed, rowOf(r, rates[r.Device], models[r.Device]))
			continue
		}
		u.All++
		namespaces[r.Namespace], jobs[jobName(r)] = true, true
		if q.matches(r) {
			found = append(found, r)
		}
	}
	u.Found = len(found)
	q.sort(found, rates)
	if q.All == "" && len(found) > maxRows {
		all := q
		all.All = "1"
		found, u.ShowAll = found[:maxRows], all.link()
	}
	rows := make([]row, len(found))
	for i, r := range found {
		rows[i] = rowOf(r, rates[r.Device], models[r.Device])
	}
	u.Shown, u.Tables = len(rows), tablesOf(rows, unattributed, q.heads)
	u.Namespaces, u.Jobs = choices(namespaces, q.Namespace), choices(jobs, q.Job)
	u.Sorts = []choice{{"", "busiest first", q.Sort == ""}}
	for _, c := range orders {
		u.Sorts = append(u.Sorts, choice{c.key, c.Name, q.Sort == c.key})
	}
	return u
}

func (q query) heads(columns []column) []head {
	heads := make([]head, len(columns))
	for i, c := range columns {
		heads[i] = q.head(c)
	}
	return heads
}

// head returns the heading of a column with the link that sorts by it, or reverses the order.
func (q query) head(c column) head {
	h := head{column: c, Sort: "none"}
	next := q
	next.Sort, next.Order = c.key, ""
	if q.Sort == c.key {
		descending := q.descending(c)
		h.Sort, next.Order = "ascending", "desc"
		if descending {
			h.Sort, next.Order = "descending", "asc"
		}
	}
	h.Link = next.link()
	return h
}

// descending reports the order of a column: numbers start with the largest one.
func (q query) descending(c column) bool {
	return q.Order == "desc" || q.Order == "" && c.Number
}

func (q query) sort(rows []*overview.Row, rates map[string]float64) {
	byName := func(a, b *overview.Row) int {
		return cmp.Or(cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.ContainerID, b.ContainerID))
	}
	i := slices.IndexFunc(orders, func(c column) bool { return c.key == q.Sort })
	if i < 0 {
		load := map[*overview.Row]float64{}
		for _, r := range rows {
			load[r] = busy(r, rates[r.Device])
		}
		slices.SortStableFunc(rows, func(a, b *overview.Row) int { return cmp.Or(-cmp.Compare(load[a], load[b]), byName(a, b)) })
		return
	}
	c := orders[i]
	slices.SortStableFunc(rows, func(a, b *overview.Row) int {
		order := 0
		switch {
		case c.of != nil:
			order = cmp.Compare(c.of(a), c.of(b))
		case c.key == "workload":
			order = byName(a, b)
		} // rows are in the order of devices already
		if c.key == "device" {
			order = cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Vendor, b.Vendor), cmp.Compare(len(a.GPU), len(b.GPU)),
				cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Device, b.Device))
		}
		if q.descending(c) {
			order = -order
		}
		return cmp.Or(order, byName(a, b))
	})
}

// busy returns how much of the device a row uses, to two digits: rows that do the same keep their order.
func busy(r *overview.Row, rate float64) float64 {
	part := math.Max(0, value(r.Utilization))
	if r.Memory != nil && r.MemoryTotal != nil && *r.MemoryTotal > 0 {
		part = math.Max(part, *r.Memory / *r.MemoryTotal)
	}
	if rate > 0 {
		part = math.Max(part, math.Max(perSecond(r.Transmit), perSecond(r.Receive))/rate)
	}
	return math.Round(100*part) / 100
}

func choices(names map[string]bool, chosen string) []choice {
	out := []choice{{"", "all", chosen == ""}}
	for name := range names {
		if name != "" {
			out = append(out, choice{name, format.Escape(name), name == chosen})
		}
	}
	slices.SortFunc(out, func(a, b choice) int { return cmp.Compare(a.Value, b.Value) })
	return out
}

// ofDevices returns what rows show of their devices: the rates of the ports of HCAs, and the models of GPUs.
func ofDevices(devices []overview.Device) (rates map[string]float64, models map[string]string) {
	rates, models = map[string]float64{}, map[string]string{}
	for i := range devices {
		if d := &devices[i]; d.Kind == overview.GPU {
			models[d.Device] = modelOf(d)
		} else {
			rates[d.Device] = d.Rate()
		}
	}
	return rates, models
}

// modelOf returns the model of a GPU or the type of an HCA.
func modelOf(d *overview.Device) string { return format.Escape(strings.TrimPrefix(d.Name, "NVIDIA ")) }

// rowOf formats a row. portRate is the rate of its HCA's ports, gpuModel the model of its GPU.
func rowOf(r *overview.Row, portRate float64, gpuModel string) row {
	out := row{
		Name: format.Owner(r.Workload), Link: web.WorkloadLink(r.Workload, r.ContainerID), About: format.Escape(jobName(r)),
		Device: deviceName(r.Kind, r.Device, r.Vendor, r.GPU), DeviceLink: web.DeviceLink(r.Device),
		Kind: r.Kind, GPU: r.Kind == overview.GPU,
		Model: gpuModel,
	}
	if out.GPU {
		out.gpu(r)
		return out
	}
	out.Memory = format.None
	if used, known := r.Used(); known {
		out.Memory, out.MemoryAbout = format.Size(used), registered(r)
	}
	out.Direct = r.Registered[model.GPUMemory] > 0
	out.Out, out.In = rate(r.Transmit, r.Gaps), rate(r.Receive, r.Gaps)
	out.OutBar, out.InBar = web.Width(perSecond(r.Transmit), portRate), web.Width(perSecond(r.Receive), portRate)
	out.Method, out.Coverage, out.Partial = methods(r), coverage(r), model.Uncounted(r.Gaps)
	out.QPs = web.Optional(r.QueuePairs, web.Number)
	if r.Verbs != nil && *r.Verbs > 0 {
		out.Verbs = format.PerSecond(*r.Verbs) + "/s"
	}
	out.VerbsP99, out.Completion = quantile(r.VerbsP99), quantile(r.CompletionP99)
	out.Errors = web.Optional(r.Errors, web.Number)
	if r.CompletionErrors != nil {
		out.ErrorsAbout = fmt.Sprintf("%d completions", *r.CompletionErrors)
	}
	out.HasErrors = count(r.Errors) > 0 || count(r.CompletionErrors) > 0
	return out
}

func (out *row) gpu(r *overview.Row) {
	out.Memory = web.Optional(r.Memory, format.Size)
	if r.Memory != nil && r.MemoryTotal != nil {
		out.MemoryAbout = "of " + format.Size(*r.MemoryTotal)
		out.MemoryBar = web.Width(*r.Memory, *r.MemoryTotal)
	}
	out.Utilization = format.None
	if r.Utilization != nil {
		out.Utilization, out.UtilizationBar = format.Escape(r.Engine)+" "+format.Percent(*r.Utilization), web.Width(*r.Utilization, 1)
	}
	if r.Allocated {
		out.About = strings.TrimPrefix(out.About+" · allocated", " · ")
	}
}
