// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	// callTimeout is how long a runtime may take for one answer. Listing asks
	// each container's shim.
	callTimeout = 3 * time.Second
	listTimeout = 30 * time.Second
	// maxMessage is what containerd sends at most.
	maxMessage = 16 << 20
)

// How often a runtime is asked whether it lives, and for a list to compare with.
// A subscription is not confirmed, so the first list may miss what happened
// before it held: another one follows soon.
const (
	checkEvery  = 5 * time.Second
	recheck     = time.Second
	relistEvery = 5 * time.Minute
	// relistQuiet is how long an event may take that a list was faster than.
	relistQuiet   = 50 * time.Millisecond
	relistLongest = time.Second
)

// conn is a connection to a runtime's gRPC server.
type conn struct {
	*grpc.ClientConn
	dialed atomic.Pointer[error] // why the socket could not be dialed
}

// dial makes a connection for one life of a runtime: the first call dials, and
// when it breaks the driver ends.
func dial(path string) (*conn, error) {
	c := &conn{}
	var err error
	c.ClientConn, err = grpc.NewClient("passthrough:///"+path,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			nc, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
			if err != nil {
				c.dialed.Store(&err)
			}
			return nc, err
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	return c, nil
}

// why is err, or what the socket said when that is the reason for it.
func (c *conn) why(err error) error {
	if dialed := c.dialed.Load(); dialed != nil && status.Code(err) == codes.Unavailable {
		return *dialed
	}
	return err
}

// close ends the connection; that it was broken already is no news.
func (c *conn) close() { _ = c.Close() }
