// SPDX-License-Identifier: Apache-2.0

//go:build stores

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/machines/stores"
	"github.com/accelscope/accelscope/tests/tools/dashboards"
)

// services make a store.
type services struct {
	*fleet
	t       *testing.T
	running []service
}

func (s *services) start(ctx context.Context, name, listen, program string, args ...string) error {
	one, err := startService(ctx, filepath.Join(s.dir, name+".log"), listen, program, args...)
	if err == nil { // otherwise it has ended
		s.running = append(s.running, one)
	}
	return err
}

func (s *services) stop() {
	for _, one := range s.running {
		one.stop()
		if text, err := os.ReadFile(one.log.Name()); s.t.Failed() {
			s.t.Logf("%s: %v\n%s", one.log.Name(), err, text[max(0, len(text)-4000):])
		}
	}
}

// thanos is deploy/prometheus/scale/shard.yml: two Prometheus servers with half of the nodes each, their sidecars, a ruler over both, and
// the querier, which takes the label of the server for the name of a replica.
type thanos struct {
	services
	program string
	shards  [2]prometheus
	ruler   string // address of its gRPC
	pages   string // address of its HTTP
}

// TestThanos: all is as with one Prometheus.
func TestThanos(t *testing.T) {
	program, err := stores.Thanos(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	testFleet(t, options{lag: 0.1, open: func(ctx context.Context, f *fleet) (store, error) {
		s := &thanos{services: services{fleet: f, t: t}, program: program, ruler: free(t), pages: free(t)}
		query := []string{"query", "--grpc-address=" + free(t), "--query.replica-label=shard", "--endpoint=" + s.ruler}
		for i := range s.shards {
			name := fmt.Sprint("shard", i)
			config, data, listen, grpc := filepath.Join(f.dir, name+".yml"), filepath.Join(f.dir, name), free(t), free(t)
			text := fmt.Sprintf("global: {external_labels: {cluster: gpus, shard: %q}}\n", fmt.Sprint(i))
			if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
				return s, err
			}
			var err error
			if s.shards[i], err = startPrometheus(ctx, listen, config, data); err != nil {
				return s, err
			}
			s.running = append(s.running, s.shards[i].service)
			err = s.run(ctx, name+"-sidecar", free(t), "sidecar", "--prometheus.url="+s.shards[i].url, "--tsdb.path="+data,
				"--grpc-address="+grpc)
			if err != nil {
				return s, err
			}
			query = append(query, "--endpoint="+grpc)
		}
		return s, s.run(ctx, "query", f.listen, query...)
	}})
}

func (s *thanos) run(ctx context.Context, name, listen string, args ...string) error {
	return s.start(ctx, name, listen, s.program, append(args, "--http-address="+listen)...)
}

// send writes samples to the server of a node. The series of recording rules belong to no server.
func (s *thanos) send(ctx context.Context, node int, body []byte) error {
	return s.shards[max(node, 0)%len(s.shards)].write(ctx, body)
}

func (*thanos) settle(context.Context) error { return nil }

func (s *thanos) load(ctx context.Context, rules string) error {
	return s.run(ctx, "ruler", s.pages, "rule", "--data-dir="+filepath.Join(s.dir, "ruler"), "--rule-file="+rules,
		"--query="+s.listen, `--label=shard="rules"`, "--grpc-address="+s.ruler)
}

// victoria is VictoriaMetrics with vmalert.
type victoria struct {
	services
	vmalert, alerts string // program and address
}

// TestVictoria: all is as with Prometheus.
func TestVictoria(t *testing.T) {
	program, err := stores.Victoria(t.Context(), "victoria-metrics")
	vmalert, other := stores.Victoria(t.Context(), "vmalert")
	if err := errors.Join(err, other); err != nil {
		t.Fatal(err)
	}
	// docs/sizing.md names these lines.
	unknown := regexp.MustCompile(`(?m)^.*histogram_count.*\n`)
	// rate() is up to a scrape interval late, a tenth of five minutes: VictoriaMetrics does not extrapolate.
	testFleet(t, options{lag: 0.25, unknown: unknown, open: func(ctx context.Context, f *fleet) (store, error) {
		s := &victoria{services{fleet: f, t: t}, vmalert, free(t)}
		// Answers are not kept, because samples of the past arrive later than queries for it. By default all answers are 30 s old.
		return s, s.start(ctx, "victoria", f.listen, program, "-httpListenAddr="+f.listen, "-storageDataPath="+f.data,
			"-retentionPeriod=1d", "-vmalert.proxyURL=http://"+s.alerts, "-search.disableCache",
			"-search.latencyOffset=0s")
	}})
}

func (s *victoria) send(ctx context.Context, _ int, body []byte) error { return s.api.write(ctx, body) }

// settle: samples may be seen a second later.
func (s *victoria) settle(ctx context.Context) error {
	return s.call(ctx, http.MethodGet, "/internal/force_flush", nil, nil)
}

// load waits for the last rules of jobs: a rule sees what an earlier rule of its group found in the evaluation before.
func (s *victoria) load(ctx context.Context, rules string) error {
	err := s.start(ctx, "vmalert", s.alerts, s.vmalert, "-rule="+rules, "-datasource.url="+s.url, "-remoteWrite.url="+s.url,
		"-remoteRead.url="+s.url, "-rule.evalDelay=0s", "-notifier.blackhole", "-httpListenAddr="+s.alerts)
	for end := time.Now().Add(5 * time.Minute); err == nil; time.Sleep(time.Second) {
		const idle, p99 = "job_name:container_gpu_allocated:idle", "job_name:container_rdma_verbs_duration_seconds:p99_rate5m"
		now := time.Now()
		all := fmt.Sprintf("count(%s) == %d and count(%s)", idle, len(s.truth(now).jobs), p99)
		var found dashboards.Answer
		if found, err = s.query(ctx, all, now); found.HasData() {
			break
		}
		if err == nil && now.After(end) {
			err = errors.New("no rules of jobs after five minutes")
		}
	}
	return err
}
