// SPDX-License-Identifier: Apache-2.0

package unload

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

const (
	// deployLabel is the prefix of the labels with which the GPU Operator deploys the clients of the driver. Its driver
	// manager and the MIG manager change their values to "paused-for-driver-upgrade" or "true_paused-for-mig-change".
	deployLabel = "nvidia.com/gpu.deploy."
	pausedValue = "paused-for-"
	// stateLabel is the state of the MIG manager: pending, rebooting, success or failed.
	stateLabel   = "nvidia.com/mig.config.state"
	longestValue = 63
)

type nodeLabels struct {
	mu      sync.Mutex
	reasons []signal
}

func (n *nodeLabels) set(labels map[string]string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reasons = paused(labels)
}

func (n *nodeLabels) signals() []signal {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.reasons
}

// paused returns at most one signal for each of the two tools.
func paused(labels map[string]string) []signal {
	var signals []signal
	if state := labels[stateLabel]; state == "pending" || state == "rebooting" {
		signals = append(signals, signal{"label of the MIG manager", "node label " + stateLabel + "=" + state})
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		client, deploys := strings.CutPrefix(key, deployLabel)
		value := labels[key]
		pauses := strings.HasPrefix(value, pausedValue) || strings.Contains(value, "_"+pausedValue)
		if deploys && pauses && len(client) <= longestValue && len(value) <= longestValue {
			return append(signals, signal{"label of a client", "node label " + key + "=" + value})
		}
	}
	return signals
}
