// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/exporter-toolkit/web"

	"github.com/accelscope/accelscope/pkg/config"
)

// Check checks the addresses, and the file that configures TLS and authentication.
func Check(f config.ListenFlags) error {
	if err := web.Validate(f.WebConfig); err != nil {
		return fmt.Errorf("--web.config.file=%s: %w", f.WebConfig, err)
	}
	for i, address := range f.ListenAddress {
		if err := checkListenAddress(address); err != nil {
			return fmt.Errorf("--web.listen-address=%s: %w", address, err)
		}
		if !strings.HasSuffix(address, ":0") && (slices.Contains(f.ListenAddress[:i], address) || address == f.ProbeAddress) {
			return fmt.Errorf("--web.listen-address=%s: another listener has this address", address)
		}
	}
	if f.ProbeAddress == "" {
		return nil
	}
	if err := checkAddress(f.ProbeAddress); err != nil {
		return fmt.Errorf("--web.probe-address=%s: %w", f.ProbeAddress, err)
	}
	return nil
}

// checkListenAddress checks an address of exporter-toolkit: HOST:PORT, or vsock://:PORT.
func checkListenAddress(address string) error {
	if !strings.HasPrefix(address, "vsock://") {
		return checkAddress(address)
	}
	u, err := url.Parse(address)
	if err == nil && u.Port() == "" {
		err = errors.New("want vsock://:PORT")
	}
	return err
}

var (
	hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?$`)
	numbers  = regexp.MustCompile(`^[0-9.]+$`)
)

// checkAddress checks that an address is HOST:PORT. A name of a host need not have an address now.
func checkAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("want HOST:PORT: %w", err)
	}
	if _, err := net.LookupPort("tcp", port); err != nil || port == "" {
		return fmt.Errorf("want HOST:PORT: %q is not a port", port)
	}
	if host == "" {
		return nil
	}
	if _, err := netip.ParseAddr(host); err != nil && (!hostName.MatchString(host) || numbers.MatchString(host)) {
		return fmt.Errorf("want HOST:PORT: %q is not an address or the name of a host", host)
	}
	return nil
}
