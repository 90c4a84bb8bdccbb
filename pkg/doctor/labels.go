// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/unload"
)

// AddNodeLabels adds whether the labels of the node can be watched. node is nil outside a pod.
func (r *Report) AddNodeLabels(ctx context.Context, node *unload.Node) {
	const name = "labels of the node"
	if node == nil {
		r.add("permission", name, model.StateUnsupported, "--gpu.release-on-node-labels has no effect outside a pod", "")
		return
	}
	if err := node.Try(ctx); err != nil {
		r.add("permission", name, model.StateFailed, err.Error(),
			"apply the component gpu-release, or set gpu.releaseOnNodeLabels of the chart, and name the node with --node.name")
		return
	}
	r.add("permission", name, model.StateOK, "", "")
}
