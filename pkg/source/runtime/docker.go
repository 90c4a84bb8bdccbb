// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

const (
	dockerDeadline = 10 * time.Second // per call
	dockerPing     = 30 * time.Second
	dockerAgain    = 5 * time.Minute // until the next list, because an event may be lost
	dockerWorkers  = 4
	// The engine silently drops events that are not received within 100 ms, so they are received at once and queued.
	dockerQueue = 4096
)

var errDockerEvents = errors.New("events came faster than they could be handled")

// docker follows an engine that serves the Docker Engine API on the Unix socket path: Docker itself (API 1.40 and
// later) or podman. It subscribes to /events, requests /containers/json, and inspects each container
// (/containers/ID/json), later also when a container is created or started. A /_ping every 30 s detects an engine that
// hangs. It keeps the labels in o.Labels. Devices of a device request (--gpus) have no path and are not reported.
func docker(ctx context.Context, o Options, path string, f feed) error {
	d := &dockerEngine{
		feed: f, labels: o.Labels, runtime: model.RuntimeDocker,
		deadline: dockerDeadline, ping: dockerPing, again: dockerAgain,
	}
	return d.follow(ctx, path)
}

type dockerEngine struct {
	feed     feed
	labels   []string
	runtime  string
	deadline time.Duration
	ping     time.Duration
	again    time.Duration
	api      *dockerAPI
	// queue holds the received events that are not handled yet.
	queue <-chan dockerEvent
	// forged lists the containers with a label that may replace the exit code in their events.
	forged map[string]bool
}

func (d *dockerEngine) follow(ctx context.Context, path string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.forged = map[string]bool{}
	d.api = newDockerAPI(path, d.deadline)
	defer d.api.http.CloseIdleConnections()
	if err := d.pings(ctx); err != nil {
		return err
	}
	if d.api.podman {
		d.runtime = model.RuntimePodman
	}
	why, err := d.subscribe(ctx)
	if err != nil {
		return err
	}
	if err := d.sync(ctx); err != nil {
		return err
	}
	ping, again := time.NewTicker(d.ping), time.NewTicker(d.again)
	defer ping.Stop()
	defer again.Stop()
	for {
		select {
		case m, ok := <-d.queue:
			if !ok {
				return fmt.Errorf("events: %w", <-why)
			}
			d.handle(ctx, m)
		case <-ping.C:
			if err := d.pings(ctx); err != nil {
				return err
			}
		case <-again.C:
			if err := d.sync(ctx); err != nil {
				return err
			}
		}
	}
}

// pings detects an engine that hangs. The first call selects the version of the API.
func (d *dockerEngine) pings(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.deadline)
	defer cancel()
	if err := d.api.ping(ctx); err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	return nil
}

// dockerFilter selects events of containers. podman names the events died and remove. Without the filter, each health
// check would cause three events.
const dockerFilter = `{"type":{"container":true},"event":{"create":true,"start":true,"die":true,"died":true,"oom":true,` +
	`"pause":true,"unpause":true,"rename":true,"destroy":true,"remove":true,"health_status":true}}`

// subscribe requests the events from now on, into the queue. The error that closed the queue is sent to why.
func (d *dockerEngine) subscribe(ctx context.Context) (why <-chan error, err error) {
	// The answer begins before the subscription takes effect: since closes the gap.
	now := time.Now()
	query := url.Values{"since": {fmt.Sprintf("%d.%09d", now.Unix(), now.Nanosecond())}, "filters": {dockerFilter}}
	body, err := d.api.events(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	q, w := make(chan dockerEvent, dockerQueue), make(chan error, 1)
	d.queue = q
	go safely.Do("runtime", func() {
		ended := safely.ErrPanicked
		defer func() {
			w <- ended
			close(q)
		}()
		full := false
		err := body.each(func(m dockerEvent) bool {
			select {
			case q <- m:
			default:
				full = true
			}
			return !full
		})
		if ended = err; full {
			ended = errDockerEvents
		}
	})
	return w, nil
}
