// SPDX-License-Identifier: Apache-2.0

package metrics

import (
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

// lifeMetrics returns the state of containers that runtimes and the kubelet report, without pod sandboxes, which are
// not containers of the user.
func lifeMetrics() []metric {
	life := func(name string, typ dto.MetricType, labels []string, help string,
		emit func(*exposition.Builder, *exposition.OwnerLabels, *model.Container),
	) metric {
		return metric{
			name: name, typ: typ, owned: true, labels: labels, help: help,
			emit: func(v *view, b *exposition.Builder) {
				for _, s := range v.scope.containers {
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
			help: "Unix time of the workload's start.",
			emit: func(v *view, b *exposition.Builder) {
				for _, s := range v.scope.containers {
					if s.Owner != 0 && s.Status != model.ContainerExited {
						known(b, moment(s.Started), v.owners[s.Owner])
					}
				}
				for _, s := range v.scope.usages {
					known(b, moment(s.Created), v.owners[s.Owner])
				}
			},
		},
		life("container_created_seconds", gauge, nil, "Unix time of the container's creation.",
			func(b *exposition.Builder, o *exposition.OwnerLabels, c *model.Container) {
				known(b, moment(c.Created), o)
			}),
		life("container_state", gauge, []string{"state"},
			"State of the container, 1 if current.",
			func(b *exposition.Builder, o *exposition.OwnerLabels, c *model.Container) {
				if c.Status != "" {
					b.StateSet(o, string(c.Status), containerStates)
				}
			}),
		life("container_health", gauge, []string{"health"},
			"Result of the container's health check, 1 if current.",
			func(b *exposition.Builder, o *exposition.OwnerLabels, c *model.Container) {
				if c.Health != "" {
					b.StateSet(o, c.Health, containerHealths)
				}
			}),
		life("container_restarts_total", counter, nil, "Restarts of the container.",
			func(b *exposition.Builder, o *exposition.OwnerLabels, c *model.Container) {
				known(b, valueOf(c.Restarts), o)
			}),
		life("container_exit_code", gauge, nil, "Exit code of the container.",
			func(b *exposition.Builder, o *exposition.OwnerLabels, c *model.Container) {
				if c.Status == model.ContainerExited {
					known(b, valueOf(c.ExitCode), o)
				}
			}),
	}
}
