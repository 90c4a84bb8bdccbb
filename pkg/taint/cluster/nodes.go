// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Condition is a condition of a node whose status is True.
type Condition struct {
	Type     string // must end with suffix
	Verdicts []string
	Since    time.Time
}

// The type of own conditions is prefix, a kind and suffix. node-problem-detector's conditions have other types.
const (
	prefix = "Accelscope"
	suffix = "Problem"
)

// separator is between the verdicts in a message.
const separator = ", "

// ConditionType returns the type of the condition for a kind of devices.
func ConditionType(kind string) string { return prefix + kind + suffix }

// condition is a condition as the API has it.
type condition struct {
	Type               string    `json:"type"`
	Status             string    `json:"status"`
	LastHeartbeatTime  time.Time `json:"lastHeartbeatTime"`
	LastTransitionTime time.Time `json:"lastTransitionTime"`
	Reason             string    `json:"reason"`
	Message            string    `json:"message"`
}

type metadata struct {
	Name        string            `json:"name"`
	UID         string            `json:"uid,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Conditions returns the own conditions of all nodes, by node.
func (c *Cluster) Conditions(ctx context.Context, kinds ...string) (map[string][]Condition, error) {
	type node struct {
		Metadata metadata
		Status   struct{ Conditions []condition }
	}
	all := map[string][]Condition{}
	err := pages(ctx, c, "/api/v1/nodes", url.Values{}, func(n *node) {
		list := []Condition{}
		for _, one := range n.Status.Conditions {
			own := slices.ContainsFunc(kinds, func(kind string) bool { return ConditionType(kind) == one.Type })
			if own && one.Status == "True" {
				list = append(list, Condition{
					Type: one.Type, Verdicts: strings.Split(one.Message, separator), Since: one.LastTransitionTime,
				})
			}
		}
		all[n.Metadata.Name] = list
	})
	return all, err
}

// nodeName is what Kubernetes accepts as a name. Prometheus may have any text as the name of a node.
var nodeName = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$`)

// SetConditions makes these the own conditions of a node, by server-side apply: conditions of others are neither changed nor removed.
func (c *Cluster) SetConditions(ctx context.Context, node string, conditions []Condition) error {
	if !nodeName.MatchString(node) {
		return fmt.Errorf("node %q: %w: no name of a node", node, ErrNotFound)
	}
	list := make([]condition, len(conditions))
	for i, one := range conditions {
		list[i] = condition{
			Type: one.Type, Status: "True", Reason: "CriticalVerdict", Message: strings.Join(one.Verdicts, separator),
			LastHeartbeatTime: one.Since.UTC().Truncate(time.Second), LastTransitionTime: one.Since.UTC().Truncate(time.Second),
		}
	}
	status := map[string]any{}
	if len(list) > 0 {
		status["conditions"] = list
	}
	body := map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": metadata{Name: node}, "status": status}
	return c.do(ctx, http.MethodPatch, "/api/v1/nodes/"+node+"/status", url.Values{"fieldManager": {manager}}, body,
		"application/apply-patch+yaml", nil)
}
