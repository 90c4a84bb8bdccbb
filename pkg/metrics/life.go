// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var (
	containerStates = []string{
		string(model.ContainerCreated), string(model.ContainerRunning), string(model.ContainerPaused),
		string(model.ContainerExited),
	}
	containerHealths = []string{"healthy", "unhealthy", "starting"}
)

// lifeMetrics are what runtimes and the kubelet tell. A sandbox is not a
// container that anybody started.
func lifeMetrics() []metric {
	life := func(name string, typ dto.MetricType, labels []string, help string,
		emit func(*exposition.Builder, *exposition.OwnerLabels, *model.Container),
	) metric {
		return metric{
			name: name, typ: typ, owned: true, labels: labels, help: help,
			emit: func(v *view, b *exposition.Builder) {
				for _, s := range v.shares.Containers {
					if !s.Sandbox && s.Owner != 0 {
						emit(b, v.owners[s.Owner], s.Container)
					}
				}
			},
		}
	}
	return []metric{
		{
			name: "container_start_time_seconds", typ: gauge, owned: true,
			help: "When the workload was started, as the runtime says, or else when its cgroup was made, " +
				"in seconds since 1970.",
			emit: func(v *view, b *exposition.Builder) {
				for _, s := range v.shares.Containers {
					if s.Owner != 0 && !s.Started.IsZero() && s.Status != model.ContainerExited {
						b.Share(seconds(s.Started), v.owners[s.Owner])
					}
				}
				for _, s := range v.shares.Usages {
					if !s.Created.IsZero() {
						b.Share(seconds(s.Created), v.owners[s.Owner])
					}
				}
			},
		},
		life("container_created_seconds", gauge, nil, "When the container was created, in seconds since 1970.",
			func(b *exposition.Builder, o *exposition.OwnerLabels, c *model.Container) {
				if !c.Created.IsZero() {
					b.Share(seconds(c.Created), o)
				}
			}),
		life("container_state", gauge, []string{"state"},
			"State of the container (created, running, paused, exited): 1 for the state it is in, 0 for the others.",
			func(b *exposition.Builder, o *exposition.OwnerLabels, c *model.Container) {
				if c.Status != "" {
					b.ShareStates(o, string(c.Status), containerStates)
				}
			}),
		life("container_health", gauge, []string{"health"},
			"What the health check of the container says (healthy, unhealthy, starting): 1 for that, 0 for the others.",
			func(b *exposition.Builder, o *exposition.OwnerLabels, c *model.Container) {
				if c.Health != "" {
					b.ShareStates(o, c.Health, containerHealths)
				}
			}),
		life("container_restarts_total", counter, nil, "How often the container was started again.",
			func(b *exposition.Builder, o *exposition.OwnerLabels, c *model.Container) {
				if c.Restarts != nil {
					b.Share(float64(*c.Restarts), o)
				}
			}),
		life("container_exit_code", gauge, nil, "Exit code of a container that has exited.",
			func(b *exposition.Builder, o *exposition.OwnerLabels, c *model.Container) {
				if c.ExitCode != nil && c.Status == model.ContainerExited {
					b.Share(float64(*c.ExitCode), o)
				}
			}),
	}
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1e3 }
