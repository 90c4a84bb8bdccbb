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
	// callTimeout is the deadline of a call. A list requests the state of each container from its shim, so listTimeout
	// is longer.
	callTimeout = 3 * time.Second
	listTimeout = 30 * time.Second
	// maxMessage is the size limit of a message, as in containerd.
	maxMessage = 16 << 20
)

// Intervals of liveness checks and of lists. A runtime does not confirm a subscription, so the first list may miss
// changes before the subscription took effect: a second list follows soon.
const (
	checkEvery  = 5 * time.Second
	recheck     = time.Second
	relistEvery = 5 * time.Minute
	// relistQuiet is the assumed maximum delay of an event behind a list that shows its effect.
	relistQuiet   = 50 * time.Millisecond
	relistLongest = time.Second
)

type conn struct {
	*grpc.ClientConn
	dialed atomic.Pointer[error] // error of dialing the socket
}

// dial connects to the gRPC server at path. The first call dials. When the connection breaks, the driver ends.
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

// why returns the error of dialing the socket if it caused err, else err.
func (c *conn) why(err error) error {
	if dialed := c.dialed.Load(); dialed != nil && status.Code(err) == codes.Unavailable {
		return *dialed
	}
	return err
}

func (c *conn) close() { _ = c.Close() }
