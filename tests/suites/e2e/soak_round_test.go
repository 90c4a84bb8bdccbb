// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

const (
	// scrapeLimit is scrape_timeout of Prometheus. The sensor itself waits 2 s for a source; the emulated CPUs need the
	// rest.
	scrapeLimit = 10 * time.Second
	healthLimit = time.Second
	// recoveryLimit is how long after the last fault of a round everything must be as before.
	recoveryLimit = time.Minute
	scrapePause   = 3 * time.Second
)

// round plays overlapping faults, and then expects that the sensor recovers. It continues to scrape meanwhile.
func (k *soak) round(events []event) {
	k.roundBegan = time.Now()
	var all sync.WaitGroup
	for _, e := range events {
		all.Go(func() { k.play(e) })
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	for playing := true; playing; {
		select {
		case <-done:
			playing = false
		default:
			k.step()
		}
	}
	healed := time.Now()
	recovered := k.recovers()
	took := time.Since(healed)
	k.outage(k.roundBegan)
	for _, e := range events {
		k.result.fault(e.name).add(took)
		if !recovered {
			k.result.fault(e.name).failures++
		}
	}
	if recovered {
		k.logf("recovered after %.1f s", took.Seconds())
	}
}

// play begins a fault, and heals it when it has lasted, at least for a whole scrape.
func (k *soak) play(e event) {
	time.Sleep(e.after)
	k.logf("begin %s, for %v", e.name, e.lasts.Round(time.Second/10))
	began := time.Now()
	if err := e.do(); err != nil {
		k.t.Errorf("begin %s: %v", e.name, err)
	}
	for range 2 { // the scrape that runs now began before
		k.nextScrape()
	}
	time.Sleep(time.Until(began.Add(e.lasts)))
	if err := e.heal(); err != nil {
		k.t.Errorf("heal %s: %v", e.name, err)
	}
	k.logf("healed %s", e.name)
}

func (k *soak) nextScrape() {
	var next chan struct{}
	k.onMain(func() { next = k.scraped })
	select {
	case <-next:
	case <-k.ctx.Done():
	}
}

// recovers scrapes until the state after the warm-up is reached and the pods with traffic send, and reports whether
// this was within the limit.
func (k *soak) recovers() bool {
	sent := k.load.sent()
	for end := time.Now().Add(recoveryLimit); ; k.pause(time.Second) {
		k.look()
		err := k.complete(k.result.last)
		if err == nil && k.load.sent() == sent {
			err = errors.New("the pods with traffic send nothing")
		}
		if err == nil {
			return true
		}
		if time.Now().After(end) {
			k.t.Errorf("%.1f s: not recovered after %v: %v\n%s", time.Since(k.begin).Seconds(), recoveryLimit, err, k.load.staying())
			for _, x := range k.result.last.all("container_rdma_resources", "type", "qp", "device", trafficDevice) {
				k.logf("the sensor has %v", x)
			}
			return false
		}
	}
}

// scrapesUntil scrapes until a time. A guest that prints nothing for five minutes is ended.
func (k *soak) scrapesUntil(end time.Time) {
	for printed := time.Now(); time.Now().Before(end) && k.ctx.Err() == nil; k.step() {
		if time.Since(printed) > time.Minute {
			printed = time.Now()
			k.logf("%d scrapes, the longest %.1f s", k.result.scrapes.count, k.result.scrapes.longest.Seconds())
		}
	}
}

// checkAlive ends the test if the sensor has ended, or has not answered three times. SIGQUIT makes it log its
// goroutines.
func (k *soak) checkAlive() {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", k.s.cmd.Process.Pid))
	if len(stat) == 0 || bytes.Contains(stat, []byte(") Z ")) {
		k.t.Fatalf("the sensor has ended: %v", k.s.cmd.Wait())
	}
	if k.unanswered++; k.unanswered == 3 {
		_ = k.s.cmd.Process.Signal(syscall.SIGQUIT)
		time.Sleep(2 * time.Second)
		k.t.Fatal("the sensor does not answer")
	}
}

// step scrapes once, and waits until the time of the next scrape.
func (k *soak) step() {
	next := time.Now().Add(scrapePause)
	k.look()
	k.pause(max(time.Until(next), 100*time.Millisecond))
}

func (k *soak) look() {
	k.result.last = nil
	if k.s != nil {
		m, err := k.scrape()
		if err != nil {
			k.result.failed++
			k.t.Errorf("%.1f s: %v", time.Since(k.begin).Seconds(), err)
			k.checkAlive()
		} else {
			k.unanswered, k.result.last = 0, m
			k.names.record(m)
		}
	}
	close(k.scraped)
	k.scraped = make(chan struct{})
}

// pause runs for some time what faults want from the test's goroutine.
func (k *soak) pause(d time.Duration) {
	for end := time.After(d); ; {
		select {
		case f := <-k.calls:
			f()
		case <-end:
			return
		}
	}
}

// scrape reads /healthz and /metrics within their limits, and checks what holds for each scrape.
func (k *soak) scrape() (metrics, error) {
	health, took, err := get(k.ctx, http.DefaultClient, k.s.url+"/healthz", scrapeLimit)
	k.result.health.add(took)
	switch {
	case err != nil:
		return nil, fmt.Errorf("/healthz: %w: %s", err, health)
	case took > healthLimit:
		k.result.late++
		k.t.Errorf("%.1f s: /healthz took %v", time.Since(k.begin).Seconds(), took)
	}
	text, took, err := get(k.ctx, http.DefaultClient, k.s.url+"/metrics", 3*scrapeLimit)
	k.result.scrapes.add(took)
	switch {
	case err != nil:
		return nil, fmt.Errorf("/metrics after %v: %w: %.200s", took, err, text)
	case took > scrapeLimit:
		k.result.late++
		k.t.Errorf("%.1f s: a scrape took %v", time.Since(k.begin).Seconds(), took)
	}
	k.result.largest = max(k.result.largest, len(text))
	parser := expfmt.NewTextParser(model.UTF8Validation)
	m, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("parsing a scrape: %w", err)
	}
	k.s.conserved(m)
	k.s.monotonic(m)
	return m, nil
}

func get(ctx context.Context, client *http.Client, url string, limit time.Duration) ([]byte, time.Duration, error) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, 0, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, time.Since(begin), err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusOK {
		err = errors.Join(err, errors.New(res.Status))
	}
	return text, time.Since(begin), err
}
