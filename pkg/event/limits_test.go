// SPDX-License-Identifier: Apache-2.0

package event

import (
	"strconv"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
)

// TestManyOpeners: of too many containers, those that are still seen are remembered.
func TestManyOpeners(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	d := devices{openers: map[string]*opener{}}
	for i := range maxOpeners {
		d.openers[strconv.Itoa(i)] = &opener{seen: now.Add(-time.Second)}
	}
	seen := attribution.Attribution{Owners: []identity.Owner{{ContainerID: "7"}, {ContainerID: "8"}}}
	if d.update(seen, now); len(d.openers) != maxOpeners {
		t.Fatalf("%d containers, want all %d", len(d.openers), maxOpeners)
	}
	d.openers["one more"], d.openers["and one"] = &opener{seen: now.Add(-time.Second)}, &opener{seen: now.Add(-time.Second)}
	if d.update(seen, now); len(d.openers) != maxOpeners || d.openers["7"] == nil || d.openers["8"] == nil {
		t.Errorf("%d containers, want %d with the seen ones: %v, %v", len(d.openers), maxOpeners, d.openers["7"], d.openers["8"])
	}
}

// TestLongThrottle: a collector cannot stop the events for long.
func TestLongThrottle(t *testing.T) {
	for asked, want := range map[time.Duration]time.Duration{-time.Second: 0, time.Second: time.Second, 24 * time.Hour: time.Minute} {
		s, err := status.New(codes.ResourceExhausted, "").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(asked)})
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := throttle(s.Err()); got != want || !ok {
			t.Errorf("%v: %v, %t, want %v", asked, got, ok, want)
		}
	}
}
