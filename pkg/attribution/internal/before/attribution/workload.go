// SPDX-License-Identifier: Apache-2.0

package attribution

import "github.com/accelscope/accelscope/pkg/attribution/internal/before/model"

// WorkloadOf is the readable key of a container, the one that its metrics carry
// once they are named: ns/pod/container, docker:NAME.
func WorkloadOf(c model.Container) string {
	return OwnerOf(entityOf(&c, model.Entity{})).Workload
}
