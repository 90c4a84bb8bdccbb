// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net"
	"sync/atomic"

	"golang.org/x/net/http2"
)

// A callCounter forwards connections between a gRPC client and its server, and counts the calls: each begins with a
// HEADERS frame. Pings do not count.
type callCounter struct {
	path     string
	listener net.Listener
	calls    atomic.Int64
}

// countCalls listens on path and forwards all connections to target.
func countCalls(path, target string) (*callCounter, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	c := &callCounter{path: path, listener: l}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go c.serve(client, target)
		}
	}()
	return c, nil
}

func (c *callCounter) serve(client net.Conn, target string) {
	defer client.Close()
	server, err := net.Dial("unix", target)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		io.Copy(client, server)
		client.Close()
	}()
	frames, seen := io.Pipe()
	defer seen.Close()
	go func() {
		defer frames.Close()
		if _, err := io.CopyN(io.Discard, frames, int64(len(http2.ClientPreface))); err != nil {
			return
		}
		for framer := http2.NewFramer(io.Discard, frames); ; {
			f, err := framer.ReadFrame()
			if err != nil {
				return
			}
			if f.Header().Type == http2.FrameHeaders {
				c.calls.Add(1)
			}
		}
	}()
	io.Copy(io.MultiWriter(server, seen), client)
}

func (c *callCounter) count() int64 { return c.calls.Load() }

func (c *callCounter) close() { c.listener.Close() }
