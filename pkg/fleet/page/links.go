// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/web"
)

// Links lead from the page of all nodes to others.
type Links struct {
	// Node is the URL of the page of a node, with {instance} for the label of the sensor and {host} for that without its port. Empty: none.
	Node string
	// Grafana is the URL of a Grafana with the dashboards of deploy/grafana. Empty: none.
	Grafana string
}

// Check reports whether the links are of web pages.
func (l Links) Check() error {
	if l.Node != "" {
		if err := fleet.CheckNodeURL(l.Node); err != nil {
			return err
		}
	}
	if l.Grafana != "" && !fleet.IsWeb(l.Grafana) {
		return fmt.Errorf("the URL of Grafana does not begin with http:// or https://: %q", l.Grafana)
	}
	return nil
}

// node returns the link to the page of a node, empty if nodes have no page.
func (l Links) node(instance string) string { return fleet.NodeURL(l.Node, instance) }

// foundLink returns the link to the page of a node, of the workload or device there if the URL is the root's.
func (l Links) foundLink(f fleet.Found) string {
	link := l.node(f.Node)
	if link == "" || !strings.HasSuffix(link, "/") {
		return link
	}
	switch f.Kind {
	case "workload":
		return link + strings.TrimPrefix(web.WorkloadLink(f.Name, ""), "/")
	case "GPU":
		return link + strings.TrimPrefix(web.DeviceLink(f.ID), "/")
	case "HCA":
		return link + strings.TrimPrefix(web.DeviceLink(f.Name), "/")
	}
	return link
}

// dashboard returns the link to a dashboard with variables, empty without Grafana.
func (l Links) dashboard(uid string, pairs ...string) string {
	if l.Grafana == "" {
		return ""
	}
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		q.Set("var-"+pairs[i], pairs[i+1])
	}
	return strings.TrimSuffix(l.Grafana, "/") + "/d/" + uid + "?" + q.Encode()
}
