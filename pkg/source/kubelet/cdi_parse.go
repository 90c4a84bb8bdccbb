// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"strings"

	"go.yaml.in/yaml/v3"
	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// Limits of one CDI specification.
const (
	maxSpecDevices = 4096
	maxSpecNodes   = 256 // per device
	maxNodePath    = 256
)

// parseSpec parses a CDI specification in YAML or JSON, a subset of YAML. It returns the device nodes of each device by
// its qualified name: VENDOR/CLASS=NAME. Nodes of all devices (nvidiactl) are left out.
func parseSpec(text []byte) (map[string][]string, error) {
	var spec specs.Spec
	if err := yaml.Unmarshal(text, &spec); err != nil {
		return nil, fmt.Errorf("no CDI specification: %s", short(err.Error()))
	}
	if len(spec.Devices) > maxSpecDevices {
		return nil, fmt.Errorf("more than %d devices", maxSpecDevices)
	}
	devices := make(map[string][]string, len(spec.Devices))
	for i := range spec.Devices {
		d := &spec.Devices[i]
		name := spec.Kind + "=" + d.Name
		if !parser.IsQualifiedName(name) {
			return nil, fmt.Errorf("invalid name of a device: %q", short(name))
		}
		if _, twice := devices[name]; twice {
			return nil, fmt.Errorf("two devices %q", short(name))
		}
		nodes, err := nodesOf(d)
		if err != nil {
			return nil, fmt.Errorf("device %q: %w", short(name), err)
		}
		devices[name] = nodes
	}
	return devices, nil
}

// nodesOf returns the names in the host's /dev of the nodes of a device. They may differ from the names in the
// container, and may be in the root directory of a driver container: /run/nvidia/driver/dev/nvidia0.
func nodesOf(d *specs.Device) ([]string, error) {
	if len(d.ContainerEdits.DeviceNodes) > maxSpecNodes {
		return nil, fmt.Errorf("more than %d device nodes", maxSpecNodes)
	}
	nodes := make([]string, 0, len(d.ContainerEdits.DeviceNodes))
	for _, n := range d.ContainerEdits.DeviceNodes {
		if n == nil {
			return nil, errors.New("a device node without a path")
		}
		host := cmp.Or(n.HostPath, n.Path)
		_, name, ok := strings.Cut(path.Clean(host), "/dev/")
		switch {
		case len(host) > maxNodePath:
			return nil, fmt.Errorf("the path of a device node has more than %d bytes", maxNodePath)
		case ok:
			nodes = append(nodes, "/dev/"+name)
		}
	}
	return nodes, nil
}
