// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
)

// viewerTime is how long the cost of open pages is measured; of a page that nobody has open, too.
const viewerTime = time.Minute

// viewerFigures are the costs of open pages.
type viewerFigures struct {
	name    string
	viewers int
	search  bool   // each viewer has a search of its own: the page is made for each
	path    string // of JSON; empty for the page

	cpu             float64 // part of a CPU
	memory          memory  // at the end, without the children, which serve no page
	answers, same   int     // the latter without a body: the viewer has the page
	bytes, firstLen int
}

// measureViewers runs the sensor on the node of GPUs while nobody, one and ten viewers have the page of the node open, and while a client
// requests the same as JSON as often. Nobody scrapes. A viewer is an HTTP client that sends what a browser sends: the page, then the same again
// after the time that the page's script waits, with the tag of the page that it has.
func measureViewers(ctx context.Context, sensor exporter, period time.Duration, out io.Writer) error {
	dir, err := os.MkdirTemp("", "viewers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	m, fake, processes, err := gpuNode(ctx, dir)
	if err != nil {
		return err
	}
	p, err := onGPUNode(sensor, m, fake, fake.Arguments).start(ctx, m)
	if err != nil {
		return err
	}
	defer p.stop()
	sleep(ctx, 3*pause) // until processes have been listed
	interval, err := pollInterval(ctx, p)
	if err != nil {
		return err
	}
	figs := []*viewerFigures{
		{name: "nobody"},
		{name: "1 viewer", viewers: 1},
		{name: "10 viewers", viewers: 10},
		{name: "10 viewers, each with a search", viewers: 10, search: true},
		{name: "/api/v1/workloads", viewers: 1, path: "api/v1/workloads"},
		{name: "/api/v1/devices", viewers: 1, path: "api/v1/devices"},
		{name: "/api/v1/history", viewers: 1, path: "api/v1/history"},
	}
	for _, f := range figs {
		progress("open pages, %s: %v", f.name, period)
		if err := f.measure(ctx, p, interval, period); err != nil {
			return err
		}
	}
	printViewers(out, figs, interval, period, processes)
	return nil
}

// pollInterval reads from the script of the page how long it waits between two requests.
func pollInterval(ctx context.Context, p *process) (time.Duration, error) {
	v := viewer{client: p.client, url: strings.TrimSuffix(p.url, "/metrics") + "/assets/page.js"}
	script, err := v.get(ctx)
	if err != nil {
		return 0, err
	}
	found := regexp.MustCompile(`const interval = (\d+);`).FindSubmatch(script)
	if found == nil {
		return 0, errors.New("the script of the page has no interval")
	}
	n, err := strconv.Atoi(string(found[1]))
	return time.Duration(n) * time.Millisecond, err
}

// measure has viewers open the page, and then measures them for a time.
func (f *viewerFigures) measure(ctx context.Context, p *process, interval, period time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	viewers := make([]*viewer, f.viewers)
	var wg sync.WaitGroup
	for i := range viewers {
		v := &viewer{client: &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}, url: strings.TrimSuffix(p.url, "metrics") + f.path}
		if f.search {
			v.url += fmt.Sprint("?q=mlx5_", i)
		}
		viewers[i] = v
		wg.Go(func() {
			sleep(ctx, time.Duration(i)*interval/time.Duration(f.viewers)) // they did not open it at the same time
			v.watch(ctx, interval)
		})
	}
	sleep(ctx, interval+time.Second) // until all have it
	before, err := totalTime(p.pid())
	if err != nil {
		return err
	}
	begin := time.Now()
	sleep(ctx, period)
	after, err := totalTime(p.pid())
	if err != nil {
		return err
	}
	f.cpu = float64(after-before) / float64(time.Since(begin))
	if f.memory, err = readStatus(p.pid()); err != nil {
		return err
	}
	cancel()
	wg.Wait()
	for _, v := range viewers {
		if v.err != nil {
			return v.err
		}
		f.answers, f.same, f.bytes, f.firstLen = f.answers+v.answers, f.same+v.same, f.bytes+v.bytes, v.length
	}
	return nil
}

// viewer is a browser with the page open.
type viewer struct {
	client *http.Client
	url    string
	tag    string // of the page that it has

	answers, same, bytes, length int
	err                          error
}

// watch requests the page until ctx ends.
func (v *viewer) watch(ctx context.Context, interval time.Duration) {
	defer v.client.CloseIdleConnections()
	for ctx.Err() == nil {
		if _, err := v.get(ctx); err != nil {
			if ctx.Err() == nil {
				v.err = err
			}
			return
		}
		sleep(ctx, interval)
	}
}

// get requests the page once, and returns its body, empty if the viewer has it.
func (v *viewer) get(ctx context.Context) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, v.url, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "text/html")
	if v.tag != "" {
		r.Header.Set("If-None-Match", v.tag)
	}
	answer, err := v.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	v.answers++
	v.bytes += len(body)
	switch answer.StatusCode {
	case http.StatusNotModified:
		v.same++
	case http.StatusOK:
		v.tag, v.length = answer.Header.Get("ETag"), len(body)
	default:
		return nil, fmt.Errorf("GET %s: %s", v.url, answer.Status)
	}
	return body, nil
}

func printViewers(out io.Writer, figs []*viewerFigures, interval, period time.Duration, processes int) {
	fmt.Fprintf(out, "\nOpen pages of a node with 10 HCAs, %d GPUs and %d processes, without scrapes: viewers that request the page %v after the "+
		"last answer; %v each.\n\n", nvml.GPUs, processes, interval, period)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "requested by\tCPU ms/minute\tof a CPU %\tof these for pages %\tms/answer\tanswers\tof these unchanged\tkB of the answer\tMB resident\tMB private\t")
	for _, f := range figs {
		perAnswer := (f.cpu - figs[0].cpu) * ms(interval) / float64(f.viewers) // NaN without viewers
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t\n", f.name, number(f.cpu*60e3, 0), number(100*f.cpu, 2), number(100*(f.cpu-figs[0].cpu), 2),
			number(perAnswer, 2), f.answers, f.same, number(float64(f.firstLen)/1e3, 0), number(f.memory.rss, 1), number(f.memory.anon, 1))
	}
	w.Flush()
}
