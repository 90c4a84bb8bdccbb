// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"net/url"
	"regexp"
	"strings"
)

// address matches a target's label instance that may become part of a URL: a host with or without a port. A sensor can
// choose its labels: this form cannot change the URL's host or path in another way.
var address = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*(:[0-9]+)?$|^\[[0-9A-Fa-f:.]+\](:[0-9]+)?$`)

var port = regexp.MustCompile(`:[0-9]+$`)

// NodeURL replaces {instance} in a URL by a sensor's label instance, and {host} by the label without its port. It
// returns "" if the label is neither a host nor host:port.
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

// CheckNodeURL checks that NodeURL can make URLs from a template.
func CheckNodeURL(template string) error {
	if !strings.Contains(template, "{instance}") && !strings.Contains(template, "{host}") {
		return errors.New("the URL of nodes has neither {instance} nor {host}")
	}
	if NodeURL(template, "node:1") == "" {
		return errors.New("the URL of nodes does not begin with http:// or https://")
	}
	return nil
}

// IsWeb reports whether an address is an HTTP URL.
func IsWeb(address string) bool {
	u, err := url.Parse(address)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}
