// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	maxThrottle = time.Minute // longest wait that a collector may request
	maxMessage  = 300         // logged bytes of its message
)

// action is what follows a call.
type action int

const (
	taken   action = iota
	again          // send the batch again
	refused        // never send the batch again
	shut           // send nothing until the collector accepts an empty request again
)

// judge follows the OTLP specification for server errors. After a connection error the batch is sent again.
func judge(a answer) action {
	if a.err == nil {
		return taken
	}
	switch code := status.Code(a.err); code {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss:
		return again
	case codes.ResourceExhausted:
		if _, ok := throttle(a.err); ok {
			return again
		}
	case codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented:
		return shut
	}
	if a.sent && !a.answered {
		return again
	}
	return refused
}

func throttle(err error) (time.Duration, bool) {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return min(max(info.GetRetryDelay().AsDuration(), 0), maxThrottle), true
		}
	}
	return 0, false
}

// explain adds a remedy to err, if known. gRPC keeps only the text of a TLS error.
func explain(endpoint string, err error) error {
	s := status.Convert(err)
	message := shorten(valid(s.Message()), maxMessage)
	has := func(text string) bool { return strings.Contains(s.Message(), text) }
	cure := ""
	switch {
	case has("signed by unknown authority"):
		cure = "no trusted CA signed its certificate: give the CA's file"
	case has("certificate is valid for"), has("doesn't contain any IP SANs"), has("certificate is not valid for any names"):
		cure = "its certificate is for another name: use that name as endpoint"
	case has("certificate has expired"):
		cure = "its certificate has expired, or the clock of this node is wrong"
	case has("certificate required"), has("bad certificate"), has("unknown certificate authority"):
		cure = "it asks for a client certificate that its CA signed: give certificate and key"
	case has("first record does not look like a TLS handshake"):
		cure = "it does not speak TLS: use insecure, or another port"
	case has("error reading server preface"):
		cure = "does it want TLS, or is it no OTLP receiver for gRPC?"
	case has("connection refused"):
		cure = "is the collector running, with its OTLP receiver on this port?"
	case has("no such host"), has("produced zero addresses"):
		cure = "check the name of the endpoint"
	case s.Code() == codes.DeadlineExceeded:
		cure = "it does not answer: is it overloaded, or a firewall in between?"
	case s.Code() == codes.Unauthenticated:
		cure = "check the headers file, which carries the credentials"
	case s.Code() == codes.PermissionDenied:
		cure = "it does not let these credentials write logs"
	case s.Code() == codes.Unimplemented:
		cure = "it takes no logs: add a logs pipeline to its OTLP receiver"
	case s.Code() == codes.ResourceExhausted:
		cure = "it takes no more for now, or no batch of this size: see its limits"
	}
	if cure == "" {
		return fmt.Errorf("%s: %s: %s", endpoint, s.Code(), message)
	}
	return fmt.Errorf("%s: %s: %s; %s", endpoint, s.Code(), message, cure)
}
