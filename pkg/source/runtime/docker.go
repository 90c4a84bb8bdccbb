// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

const (
	dockerDeadline = 10 * time.Second // per call
	dockerPing     = 30 * time.Second
	dockerAgain    = 5 * time.Minute // list, because an event may have been lost
	dockerWorkers  = 4
	// The engine silently drops events that are not received within 100 ms, so they are received at
	// once and queued.
	dockerQueue = 4096
)

var errDockerEvents = errors.New("events came faster than they could be handled")

// docker follows an engine that serves the Docker Engine API on the Unix socket path: Docker itself
// (API 1.40 and later) or podman. It subscribes to /events, then requests /containers/json, and
// /containers/ID/json of each container. Later it inspects a container when it is created or
// started. A /_ping every 30 s detects an engine that hangs. It keeps those labels of the
// containers that o.Labels lists. Devices of a device request (--gpus) have no path and are not
// reported.
func docker(ctx context.Context, o Options, path string, f feed) error {
	d := &dockerEngine{
		feed: f, labels: o.Labels, runtime: model.RuntimeDocker,
		deadline: dockerDeadline, ping: dockerPing, again: dockerAgain,
	}
	return d.follow(ctx, path)
}

// dockerEngine is one connection to an engine.
type dockerEngine struct {
	feed     feed
	labels   []string
	runtime  string
	deadline time.Duration
	ping     time.Duration
	again    time.Duration
	api      *client.Client
	bodies   *dockerBodies
	// queue holds the events that were received and not handled yet.
	queue <-chan events.Message
	// forged lists the containers with a label that may replace the exit code in their events.
	forged map[string]bool
}

func (d *dockerEngine) follow(ctx context.Context, path string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.forged = map[string]bool{}
	d.bodies = newDockerBodies(path, d.deadline)
	defer d.bodies.CloseIdleConnections()
	var err error
	d.api, err = client.New(client.WithHost("unix://"+path), client.WithHTTPClient(&http.Client{Transport: d.bodies}))
	if err != nil {
		return err
	}
	if err := d.pings(ctx); err != nil {
		return err
	}
	if d.bodies.podman.Load() {
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

// pings detects an engine that hangs. The first call negotiates the version of the API.
func (d *dockerEngine) pings(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.deadline)
	defer cancel()
	_, err := d.api.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
	if err == nil {
		return nil
	}
	if dialed := d.bodies.dialed.Load(); dialed != nil {
		err = *dialed
	}
	return fmt.Errorf("ping: %w", err)
}

// subscribe requests the events from now on, into the queue. The error that closed the queue is
// sent to why.
func (d *dockerEngine) subscribe(ctx context.Context) (why <-chan error, err error) {
	// podman names the events died and remove. Without this filter, each health check would cause
	// three events.
	filter := make(client.Filters).Add("type", string(events.ContainerEventType)).Add("event",
		"create", "start", "die", "died", "oom", "pause", "unpause", "rename", "destroy", "remove", "health_status")
	// The answer begins before the subscription takes effect: since closes the gap.
	now := time.Now()
	since := fmt.Sprintf("%d.%09d", now.Unix(), now.Nanosecond())
	stream := d.api.Events(ctx, client.EventsListOptions{Since: since, Filters: filter})
	select {
	case err := <-stream.Err:
		return nil, fmt.Errorf("subscribe: %w", err)
	default:
	}
	q, w := make(chan events.Message, dockerQueue), make(chan error, 1)
	d.queue = q
	go safely.Do("runtime", func() {
		ended := safely.ErrPanicked
		defer func() {
			w <- ended
			close(q)
		}()
		for {
			select {
			case m := <-stream.Messages:
				d.bodies.refill()
				select {
				case q <- m:
				default:
					ended = errDockerEvents
					return
				}
			case ended = <-stream.Err:
				return
			}
		}
	})
	return w, nil
}
