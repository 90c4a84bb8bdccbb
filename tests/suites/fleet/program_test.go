// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"math"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	nodes "github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/tests/tools/child"
)

func buildProgram(t *testing.T) string {
	t.Helper()
	root, err := root(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "accelscope")
	build := child.Command(t.Context(), "go", "build", "-o", filepath.Dir(binary), "./cmd/...")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return binary
}

// program compares the program's page and terminal output of all nodes with what the generator writes.
func (f *fleet) program(t *testing.T, binary string) {
	site := f.serve(t, binary)
	t.Run("totals", func(t *testing.T) { f.totals(t, site) })
	for _, c := range []struct {
		key    string
		class  string
		limits []float64
		of     func(figures, string) float64
	}{
		{"use", "u", []float64{.1, .25, .5, .75}, func(one figures, hca string) float64 { return one.use[hca] }},
		{"errors", "e", []float64{0, 1, 10, 100}, func(one figures, hca string) float64 { return one.errors[hca] }},
		{"pause", "e", []float64{0, .01, .1, .5}, func(one figures, hca string) float64 { return one.paused[hca] }},
	} {
		t.Run(c.key, func(t *testing.T) { f.heat(t, site, c.key, c.class, c.limits, c.of) })
	}
	t.Run("job", func(t *testing.T) { f.idleJob(t, site, binary) })
	t.Run("top", func(t *testing.T) { f.top(t, binary) })
}

// serve starts accelscope fleet and returns its URL.
func (f *fleet) serve(t *testing.T, binary string) string {
	t.Helper()
	cmd := child.Command(context.Background(), binary, "fleet", "--prometheus="+f.url, "--web.listen-address=127.0.0.1:0", "--log.format=json") // ends by a signal
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	a, ok := <-child.Addresses(log)
	if !ok {
		t.Fatal("accelscope fleet ended")
	}
	return "http://" + a
}

// view returns a page.
func view(t *testing.T, address string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v %s", address, answer.Status, err, text)
	}
	return html.UnescapeString(string(text))
}

var total = regexp.MustCompile(`<dt>([^<]*)</dt><dd>([^<]*)<small>([^<]*)</small>`)

func (f *fleet) totals(t *testing.T, site string) {
	strip := map[string]string{}
	for _, m := range total.FindAllStringSubmatch(view(t, site+"/"), -1) {
		strip[m[1]] = m[2] + ": " + m[3]
	}
	want := f.truth(time.Now())
	for name, text := range map[string]string{
		"Nodes": fmt.Sprintf("%d: %d without an answer", len(f.nodes), want.down), "GPUs": want.gpus, "RDMA ports": want.ports,
	} {
		if strip[name] != text {
			t.Errorf("%s: the page has %q, the generator writes %q", name, strip[name], text)
		}
	}
	for name, rate := range map[string]float64{"All ports out": want.transmit, "All ports in": want.receive} {
		text, _, _ := strings.Cut(strip[name], ": ")
		if got, _, ok := number(strings.TrimSuffix(text, "/s")); !ok || math.Abs(got-rate) > f.lag*rate {
			t.Errorf("%s: the page has %q, the generator writes %g bytes a second", name, text, rate)
		}
	}
}

var (
	band  = regexp.MustCompile(`(?s)<svg class="map heat".*?</svg>`)
	rail  = regexp.MustCompile(`<text class="small" x="0" y="(\d+)">([^<]*)</text>`)
	level = regexp.MustCompile(`<path class="(\w+)" d="([^"]*)"`)
	line  = regexp.MustCompile(`M(\d+) (\d+)h(\d+)`)
)

// heat compares the heat map: a row for each HCA name, a column for each node, and the level of each cell.
func (f *fleet) heat(t *testing.T, site, key, class string, limits []float64, of func(figures, string) float64) {
	picture := band.FindString(view(t, site+"/?heat="+key))
	type cell struct{ x, y int }
	got := map[cell]string{}
	for _, l := range level.FindAllStringSubmatch(picture, -1) {
		for _, m := range line.FindAllStringSubmatch(l[2], -1) {
			x, _ := strconv.Atoi(m[1])
			y, _ := strconv.Atoi(m[2])
			width, _ := strconv.Atoi(m[3])
			for i := range width {
				if was := got[cell{x + i, y}]; was != "" {
					t.Errorf("the cell %d of row %d has two levels", x+i, y)
				}
				got[cell{x + i, y}] = l[1]
			}
		}
	}
	var rails []string
	for _, m := range rail.FindAllStringSubmatch(picture, -1) {
		rails = append(rails, m[2])
	}
	if want := []string{"mlx5_0", "mlx5_1"}; !slices.Equal(rails, want) {
		t.Errorf("the rows are %v, want %v", rails, want)
	}
	want, levels := f.truth(time.Now()), map[string]int{}
	for x, n := range f.nodes { // sorted by name
		for y, hca := range rails {
			one, answers := want.of[n.name()]
			is := got[cell{x, y}]
			levels[is]++
			if !answers || !one.active[hca] {
				if is != "down" {
					t.Errorf("%s %s has the level %q, want down", n.name(), hca, is)
				}
				continue
			}
			// Near a limit either level is right: the rules were evaluated some seconds ago.
			v := of(one, hca)
			least, most := class+strconv.Itoa(above(limits, (1-f.lag)*v)), class+strconv.Itoa(above(limits, (1+f.lag)*v))
			if is < least || is > most {
				t.Errorf("%s %s has the level %q, and the generator writes %g", n.name(), hca, is, v)
			}
		}
	}
	if len(got) != len(f.nodes)*len(rails) || len(levels) < 3 || levels["down"] != len(rails)+1 {
		t.Errorf("%d cells of the levels %v: the comparison shows less than it should", len(got), levels)
	}
}

// above returns the number of limits below a value.
func above(limits []float64, v float64) (n int) {
	for n < len(limits) && v > limits[n] {
		n++
	}
	return n
}

// once runs accelscope top once.
func (f *fleet) once(t *testing.T, binary string, args ...string) string {
	t.Helper()
	cmd := child.Command(t.Context(), binary, append([]string{"top", "--prometheus=" + f.url, "--once"}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

func (f *fleet) state(t *testing.T, binary string) *nodes.State {
	t.Helper()
	s := &nodes.State{}
	if err := json.Unmarshal([]byte(f.once(t, binary, "--json")), s); err != nil {
		t.Fatal(err)
	}
	if len(s.Problems) > 0 {
		t.Errorf("problems: %q", s.Problems)
	}
	return s
}

// eachMinute is how often the rules of jobs are evaluated in a minute.
func (f *fleet) eachMinute() float64 {
	if f.minutely {
		return 1
	}
	return time.Minute.Seconds() / f.every.Seconds()
}

// idleJob compares the job with an idle GPU. Its unused hours are the recorded past, and a minute for each evaluation
// since.
func (f *fleet) idleJob(t *testing.T, site, binary string) {
	s := f.state(t, binary)
	want, wasting := f.truth(s.At), 0
	for _, j := range s.Jobs {
		gpus, idle := float64(want.jobGPUs[j.JobName]), float64(want.idle[j.JobName])
		if j.GPUs == nil || *j.GPUs != gpus || j.Idle == nil || *j.Idle != idle || j.IdleHours == nil {
			t.Errorf("%v has %v GPUs, %v idle, %v hours, and the generator writes %v and %v", j.JobName, value(j.GPUs), value(j.Idle), value(j.IdleHours), gpus, idle)
			continue
		}
		past := f.wasted(j.JobName)
		since := time.Since(f.begin).Minutes() - float64(f.minutes)
		if least, most := past+idle/60, past+idle*math.Ceil(since)*f.eachMinute()/60; *j.IdleHours < least-1e-9 || *j.IdleHours > most+1e-9 {
			t.Errorf("%v has %v idle GPU hours, and the generator writes %v to %v", j.JobName, *j.IdleHours, least, most)
		}
		if past == 0 {
			continue
		}
		wasting++
		// The page has the same, perhaps after the next evaluation of the rules.
		text := view(t, site+"/job?"+url.Values{"namespace": {j.Namespace}, "kind": {j.Kind}, "name": {j.Name}}.Encode())
		m := regexp.MustCompile(`data-label="GPUs">(\d+)</td><td role="cell" data-label="Idle" class="warn">(\d+)</td><td role="cell" data-label="Wasted">([0-9.]+) h<`).FindStringSubmatch(text)
		if m == nil || m[1] != fmt.Sprint(gpus) || m[2] != fmt.Sprint(idle) {
			t.Errorf("%v: the page has GPUs, idle, wasted %v, the generator writes %v, %v", j.JobName, m, gpus, idle)
			continue
		}
		if shown, err := strconv.ParseFloat(m[3], 64); err != nil || shown < past-0.05 || shown > past+idle*math.Ceil(since+1)*f.eachMinute()/60+0.05 {
			t.Errorf("%v: the page has %s h, the generator writes %v and more", j.JobName, m[3], past)
		}
	}
	if wasting != 1 {
		t.Errorf("%d jobs had idle GPUs in the past: the comparison shows nothing", wasting)
	}
}

func value(v *float64) any {
	if v == nil {
		return "unknown"
	}
	return *v
}
