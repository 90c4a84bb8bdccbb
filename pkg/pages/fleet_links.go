// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/accelscope/accelscope/pkg/fleet"
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
		if !strings.Contains(l.Node, "{instance}") && !strings.Contains(l.Node, "{host}") {
			return errors.New("the URL of nodes has neither {instance} nor {host}")
		}
		if web(l.node("node:1")) == "" {
			return errors.New("the URL of nodes does not begin with http:// or https://")
		}
	}
	if l.Grafana != "" && web(l.Grafana) == "" {
		return fmt.Errorf("the URL of Grafana does not begin with http:// or https://: %q", l.Grafana)
	}
	return nil
}

// web returns an address if it is one of a web page.
func web(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return ""
	}
	return address
}

// address matches the label instance of a target that may be a part of a URL: it cannot change its host or path otherwise.
var address = regexp.MustCompile(`^[A-Za-z0-9._-]+(:[0-9]+)?$|^\[[0-9A-Fa-f:.]+\](:[0-9]+)?$`)

var port = regexp.MustCompile(`:[0-9]+$`)

// node returns the link to the page of a node, empty if there is none.
func (l Links) node(instance string) string {
	if l.Node == "" || !address.MatchString(instance) {
		return ""
	}
	return web(strings.NewReplacer("{instance}", instance, "{host}", port.ReplaceAllString(instance, "")).Replace(l.Node))
}

// foundLink returns the link to the page of a node, of the workload or device there if the URL is that of the root.
func (l Links) foundLink(f fleet.Found) string {
	link := l.node(f.Node)
	if link == "" || !strings.HasSuffix(link, "/") {
		return link
	}
	switch f.Kind {
	case "workload":
		return link + strings.TrimPrefix(workloadLink(f.Name, ""), "/")
	case "GPU":
		return link + strings.TrimPrefix(deviceLink(f.ID), "/")
	case "HCA":
		return link + strings.TrimPrefix(deviceLink(f.Name), "/")
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
