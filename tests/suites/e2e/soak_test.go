// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/machines/otel"
	"github.com/accelscope/accelscope/tests/machines/vm/guest"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// Environment variables of TestSoak. `make soak` sets them from SOAK and SEED.
const (
	soakVar = "ACCELSCOPE_SOAK" // duration of the soak
	seedVar = "ACCELSCOPE_SEED" // seed of the faults; empty: random
)

// TestSoak runs the sensor as users do (surveys, GPUs, a kubelet, metrics of all containers, events) with traffic and 200
// containers that come and go, while a random sequence of faults happens.
// It checks each scrape, the recovery after each fault, and at the end that the sensor uses no more resources than at
// the start.
func TestSoak(t *testing.T) {
	if os.Getenv(soakVar) == "" {
		t.Skip("only in make soak")
	}
	length, err := time.ParseDuration(os.Getenv(soakVar))
	if err != nil {
		t.Fatal(err)
	}
	n := node{kernel: "7"} // the only kernel whose Soft-RoCE counts the bytes of a port
	if whole() {
		n = parse(strings.Split(os.Getenv(nodesVar), ","))[0]
	}
	opts := n.options(t) // in parallel with other guests
	if os.Getenv(binaryVar) == "" {
		collector, err := otel.Build(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		library, err := nvml.Build(t.Context(), t.TempDir(), false)
		if err != nil {
			t.Fatal(err)
		}
		seed := os.Getenv(seedVar)
		if seed == "" {
			seed = strconv.FormatUint(uint64(rand.Uint32()), 10)
		}
		t.Logf("to replay the faults: make soak SOAK=%s SEED=%s", os.Getenv(soakVar), seed)
		opts.Timeout = length + soakExtra
		opts.Env = append(opts.Env, otelcolVar+"="+collector, nvmlVar+"="+library, soakVar+"="+os.Getenv(soakVar), seedVar+"="+seed)
	}
	if guest.Enter(t, opts) {
		child.Longest = length + soakExtra
		seed, err := strconv.ParseUint(os.Getenv(seedVar), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		newSoak(t, n, length, seed).run()
	}
}

// soakExtra is the time for the start of the guest and the runtimes, and for the end.
const soakExtra = 15 * time.Minute

// soak is a running soak. The test's goroutine starts, kills and scrapes the sensor; others generate load and faults.
type soak struct {
	t      *testing.T
	ctx    context.Context
	n      node
	begin  time.Time
	length time.Duration
	seed   uint64

	load  *soakLoad
	more  *soakSources
	s     *sensor // nil while it is killed
	names *nameLog
	calls chan func() // of faults, for the test's goroutine

	normal  soakState // after the warm-up
	result  soakResult
	scraped chan struct{} // closed and replaced after each scrape

	roundBegan time.Time
	unanswered int // scrapes in a row
}

func newSoak(t *testing.T, n node, length time.Duration, seed uint64) *soak {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), length+soakExtra)
	t.Cleanup(cancel)
	k := &soak{t: t, ctx: ctx, n: n, length: length, seed: seed, calls: make(chan func()), scraped: make(chan struct{})}
	k.result.faults = map[string]*faultResult{}
	k.load = startSoakLoad(ctx, t)
	k.more = startSoakSources(t, k.load)
	return k
}

// run is the soak: warm-up, rounds of faults, and a time without faults.
func (k *soak) run() {
	k.begin = time.Now()
	warm, settle := soakTimes(k.length)
	k.startSensor()
	k.load.startChurn()
	for !k.load.full.Load() && k.ctx.Err() == nil {
		k.step()
	}
	k.logf("%d containers; warm-up of %v", soakContainers, warm)
	k.scrapesUntil(time.Now().Add(warm))
	if !k.recovers() {
		k.t.Fatal("the sensor is not complete after the warm-up")
	}
	k.normal = stateOf(k.result.last)
	k.normal.usage = k.usage()
	k.logf("after the warm-up: %v", k.normal.usage)
	rounds := newPlan(k.seed, k.faults())
	for k.ctx.Err() == nil && time.Since(k.begin) < k.length-settle {
		k.round(rounds.next())
	}
	k.logf("no more faults, for %v", settle)
	before, sent := k.packets(), k.load.sent()
	k.scrapesUntil(time.Now().Add(settle))
	if after := k.packets(); after <= before {
		k.t.Errorf("packets of the pods in the time without faults: %v, then %v; of the kernel: %s, then %s\n%s",
			before, after, sent, k.load.sent(), k.load.staying())
	}
	k.checkFlat()
	k.checkNames()
	k.t.Log(k.result.table(k))
	k.s.stop()
}

// packets returns how many packets the device of the pods with traffic has sent, by the sensor.
func (k *soak) packets() float64 {
	return k.result.last.sum("rdma_stat_sent_pkts", "device", trafficDevice)
}

// soakTimes returns the duration of the warm-up and of the time without faults at the end. Both are at least twice the
// grace time, because the maps have the entries of ended containers.
func soakTimes(length time.Duration) (warm, settle time.Duration) {
	return max(60*time.Second, min(length/10, 5*time.Minute)), max(70*time.Second, min(length/10, 5*time.Minute))
}

func (k *soak) logf(format string, args ...any) {
	k.t.Logf("%8.1f s  "+format, append([]any{time.Since(k.begin).Seconds()}, args...)...)
}

// onMain runs f on the test's goroutine, between two scrapes.
func (k *soak) onMain(f func()) {
	done := make(chan struct{})
	select {
	case k.calls <- func() { defer close(done); f() }:
		select {
		case <-done:
		case <-k.ctx.Done():
		}
	case <-k.ctx.Done():
	}
}
