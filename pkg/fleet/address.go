// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"net/url"
	"regexp"
	"strings"
)

// address matches the label instance of a target that may be a part of a URL: a host, which may have a port. It cannot change the host or
// path of the URL otherwise, which matters as a sensor can choose its labels.
var address = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*(:[0-9]+)?$|^\[[0-9A-Fa-f:.]+\](:[0-9]+)?$`)

var port = regexp.MustCompile(`:[0-9]+$`)

// NodeURL replaces {instance} in a URL by the label of a sensor, and {host} by the label without its port. It returns nothing if the label
// is neither a host nor host:port.
func NodeURL(template, instance string) string {
	if template == "" || !address.MatchString(instance) {
		return ""
	}
	out := strings.NewReplacer("{instance}", instance, "{host}", port.ReplaceAllString(instance, "")).Replace(template)
	if !IsWeb(out) {
		return ""
	}
	return out
}

// CheckNodeURL reports whether NodeURL can make URLs of nodes from a template.
func CheckNodeURL(template string) error {
	if !strings.Contains(template, "{instance}") && !strings.Contains(template, "{host}") {
		return errors.New("the URL of nodes has neither {instance} nor {host}")
	}
	if NodeURL(template, "node:1") == "" {
		return errors.New("the URL of nodes does not begin with http:// or https://")
	}
	return nil
}

// IsWeb reports whether an address is one of HTTP.
func IsWeb(address string) bool {
	u, err := url.Parse(address)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}
