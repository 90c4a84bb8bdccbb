// SPDX-License-Identifier: Apache-2.0

package event

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/stats"
)

// rpc is the state of a call in the transport. gRPC reports it to the handler with the call's context, possibly after
// the call has returned.
type rpc struct {
	sent, answered atomic.Bool
}

type rpcKey struct{}

// HandleRPC notes that a request was sent and that the server ended the call.
func (w *wire) HandleRPC(ctx context.Context, s stats.RPCStats) {
	seen, ok := ctx.Value(rpcKey{}).(*rpc)
	if !ok {
		return
	}
	switch s.(type) {
	case *stats.OutPayload:
		seen.sent.Store(true)
	case *stats.InTrailer:
		seen.answered.Store(true)
	}
}

// TagRPC adds nothing.
func (w *wire) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn adds nothing.
func (w *wire) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn does nothing.
func (w *wire) HandleConn(context.Context, stats.ConnStats) {}
