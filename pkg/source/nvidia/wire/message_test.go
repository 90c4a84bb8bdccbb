// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestConnection: a message is received as it was sent, and an impossible length or body is refused.
func TestConnection(t *testing.T) {
	var socket bytes.Buffer
	c := &Connection{Socket: &socket}
	for _, want := range []Message{
		{Version: Version, Start: &Start{Options: Options{Interval: time.Second}, Addresses: []string{"0000:c1:00.0"}, Instances: GPMOnly}},
		{Request: &Request{Number: 7, Read: true}},
		{Answer: &Reply{Number: 7, Snapshot: &model.Snapshot{GPUs: []model.GPU{}}, Hung: []string{"0"}}}, // nil is not empty
		{XID: &XIDCount{UUID: "GPU-a", XID: model.XID{Code: 31, Count: 1}}},
	} {
		if err := c.Send(want); err != nil {
			t.Fatal(err)
		}
		if got, err := c.Receive(); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v %+v, want %+v", err, got, want)
		}
	}
	if _, err := c.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	for _, frame := range []string{"\xff\xff\xff\xff", "\x00\x00\x00\x01x"} {
		socket.Reset()
		socket.WriteString(frame)
		if _, err := c.Receive(); !errors.Is(err, ErrMessage) {
			t.Errorf("%q: %v", frame, err)
		}
	}
}
