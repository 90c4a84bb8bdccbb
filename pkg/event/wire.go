// SPDX-License-Identifier: Apache-2.0

package event

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/accelscope/accelscope/pkg/safely"
)

const (
	connectTimeout = 5 * time.Second
	// silence is how long the other host may answer neither data nor probes until the connection is closed: a host
	// without power or network sends no reset.
	silence = 6 * time.Second
)

// dialer detects a lost host with the kernel's keepalive probes. Instead of gRPC's pings: a server ends connections
// with more than one ping in some minutes.
var dialer = net.Dialer{
	KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence / 2, Interval: time.Second, Count: 3},
	Control: func(_, _ string, conn syscall.RawConn) error {
		var set error
		err := conn.Control(func(fd uintptr) {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
		})
		return errors.Join(err, set)
	},
}

// wire is a connection to the collector. The SDK's exporter would report neither rejected records nor whether a failed batch
// was sent, which a stats handler notes. Files are read for each connection, so that rotated files are used.
type wire struct {
	conn    *grpc.ClientConn
	client  collogs.LogsServiceClient
	headers []string
	timeout time.Duration
	greeted atomic.Bool
	gone    chan struct{} // closed with the connection, after greet
}

// answer is the result of one call.
type answer struct {
	err      error
	sent     bool // at least a part of the request was sent
	answered bool // err comes from the server, not the connection
	rejected int  // rejected records, if the server accepted the rest
	message  string
}

func dial(o Options, timeout time.Duration) (*wire, error) {
	creds, err := transport(o)
	if err != nil {
		return nil, err
	}
	w := &wire{timeout: timeout, gone: make(chan struct{})}
	if w.headers, err = readHeaders(o.HeadersFile); err != nil {
		return nil, err
	}
	w.conn, err = grpc.NewClient(
		o.Endpoint,
		grpc.WithTransportCredentials(creds),
		grpc.WithUserAgent("accelscope/"+o.Version),
		// The environment's proxy is not used: a node reaches its collector directly, and keepalive probes would reach
		// only the proxy.
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			if w.greeted.Load() { // gRPC would reconnect by itself, possibly to another collector
				return nil, errLost
			}
			return dialer.DialContext(ctx, "tcp", address)
		}),
		grpc.WithStatsHandler(w),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: connectTimeout}),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0), // a lost connection must be noticed
	)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Endpoint, err)
	}
	w.client = collogs.NewLogsServiceClient(w.conn)
	return w, nil
}

// transport returns the transport security of the connection.
func transport(o Options) (credentials.TransportCredentials, error) {
	if o.Insecure {
		if o.CAFile != "" || o.CertFile != "" || o.KeyFile != "" {
			return nil, errors.New("insecure and certificates exclude each other")
		}
		return insecure.NewCredentials(), nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("CA: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA: no certificate (PEM) in %s", o.CAFile)
		}
	}
	if o.CertFile != "" || o.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("client certificate and key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(config), nil
}

// greet connects and sends an empty request, to learn before any record is sent whether the collector accepts requests.
func (w *wire) greet(ctx context.Context) error {
	err := w.export(ctx, &collogs.ExportLogsServiceRequest{}).err
	if err != nil && status.Code(err) != codes.InvalidArgument { // the collector is reachable but rejects an empty request
		return err
	}
	w.greeted.Store(true)
	go safely.Do("events", w.watch)
	return nil
}

// watch closes gone when the connection is lost.
func (w *wire) watch() {
	defer close(w.gone)
	if w.conn.GetState() == connectivity.Connecting { // gRPC uses a connection before its state is Ready
		w.conn.WaitForStateChange(context.Background(), connectivity.Connecting)
	}
	w.conn.WaitForStateChange(context.Background(), connectivity.Ready)
}

// close closes the connection.
func (w *wire) close(greeted bool) {
	_ = w.conn.Close()
	if greeted {
		<-w.gone
	}
}

// lost reports whether the greeted connection has ended.
func (w *wire) lost() bool {
	select {
	case <-w.gone:
		return true
	default:
		return false
	}
}

// export sends a request, once: only the Exporter sends again, because it counts and marks.
func (w *wire) export(ctx context.Context, request *collogs.ExportLogsServiceRequest) answer {
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	seen := &rpc{}
	ctx = context.WithValue(metadata.AppendToOutgoingContext(ctx, w.headers...), rpcKey{}, seen)
	reply, err := w.client.Export(ctx, request)
	partial := reply.GetPartialSuccess()
	return answer{
		err: err, sent: seen.sent.Load(), answered: seen.answered.Load(),
		rejected: int(partial.GetRejectedLogRecords()), message: partial.GetErrorMessage(),
	}
}
