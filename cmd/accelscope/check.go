// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/exporter-toolkit/web"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/event"
)

// checkCmd checks the configuration of the sensor: flags, environment, and the
// files that they name. It starts nothing.
type checkCmd struct{ runCmd }

func (c *checkCmd) run(stdout io.Writer) error {
	if err := c.validate(); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "the configuration is valid")
	return nil
}

// validate returns why the sensor cannot do what the configuration says, whatever the node has. The sensor does not start then.
func (c *runCmd) validate() error {
	if err := c.listenFlags.validate(); err != nil {
		return err
	}
	if _, err := c.parse(); err != nil {
		return err
	}
	if _, err := c.excluded(); err != nil {
		return err
	}
	if len(c.Socket) > maxSocketPath {
		return fmt.Errorf("--gpu.control-socket=%s: the path of a socket has at most %d bytes", c.Socket, maxSocketPath)
	}
	if c.Endpoint != "" {
		var o event.Options
		if c.fill(&o); !c.Runtime {
			return errNoRuntime
		}
		if err := o.Check(); err != nil {
			return fmt.Errorf("events: %w", err)
		}
	}
	_, err := newRoutes(c.webFlags, nil, nil, nil, nil, nil, zap.NewNop())
	return err
}

// maxSocketPath is the size of sun_path (unix(7)) without the NUL at its end.
const maxSocketPath = 107

// validate checks the addresses, and the file that configures TLS and authentication.
func (f listenFlags) validate() error {
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
