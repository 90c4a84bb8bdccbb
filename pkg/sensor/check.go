// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/event"
	"github.com/accelscope/accelscope/pkg/httpserver"
)

// Check returns why the sensor cannot do what the configuration says, whatever the node has. The sensor does not start then.
func (o *Options) Check() error {
	if err := httpserver.Check(o.ListenFlags); err != nil {
		return err
	}
	if _, err := o.parse(); err != nil {
		return err
	}
	if _, err := o.excluded(); err != nil {
		return err
	}
	if len(o.Socket) > maxSocketPath {
		return fmt.Errorf("--gpu.control-socket=%s: the path of a socket has at most %d bytes", o.Socket, maxSocketPath)
	}
	if o.Endpoint != "" {
		var e event.Options
		if o.fill(&e); !o.Runtime {
			return errNoRuntime
		}
		if err := e.Check(); err != nil {
			return fmt.Errorf("events: %w", err)
		}
	}
	_, err := newRoutes(o.WebFlags, backend{}, nil, zap.NewNop())
	return err
}

// maxSocketPath is the size of sun_path (unix(7)) without the NUL at its end.
const maxSocketPath = 107
