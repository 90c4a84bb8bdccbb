// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"sync/atomic"

	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	"google.golang.org/grpc"
)

// A receiver accepts events over OTLP and counts them.
type receiver struct {
	collogs.UnimplementedLogsServiceServer
	address string
	events  atomic.Int64
	stop    func()
}

func (r *receiver) Export(_ context.Context, request *collogs.ExportLogsServiceRequest) (*collogs.ExportLogsServiceResponse, error) {
	for _, resource := range request.ResourceLogs {
		for _, scope := range resource.ScopeLogs {
			r.events.Add(int64(len(scope.LogRecords)))
		}
	}
	return &collogs.ExportLogsServiceResponse{}, nil
}

func startReceiver() (*receiver, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	r := &receiver{address: l.Addr().String(), stop: server.Stop}
	collogs.RegisterLogsServiceServer(server, r)
	go server.Serve(l)
	return r, nil
}

// arguments returns the arguments with which the sensor sends events to the receiver.
func (r *receiver) arguments() []string {
	return []string{"--events.otlp-endpoint=" + r.address, "--events.otlp-insecure"}
}
