// SPDX-License-Identifier: Apache-2.0

package otel

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"
)

// Another process may answer on the port, also for a moment only.
func TestStartOnTakenPort(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	path, err := Build(ctx)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	config := Config{Dir: t.TempDir(), Endpoint: l.Addr().String()}
	c, err := Start(ctx, path, config)
	if err == nil {
		c.Kill()
	}
	if err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("error %v", err)
	}
	l.Close()
	// A restarted Collector must not be taken as ready because of the log of an earlier start.
	for range 2 {
		if c, err = Start(ctx, path, config); err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", config.Endpoint)
		if err != nil {
			t.Error(err)
		} else {
			conn.Close()
		}
		c.Stop()
	}
}
