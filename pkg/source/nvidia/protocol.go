// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"go.uber.org/zap/zapcore"

	"github.com/accelscope/accelscope/pkg/model"
)

// protocolVersion is in the first message of each side. Both sides are the same program.
const protocolVersion = 1

// maxMessage bounds a message, in bytes. Eight GPUs with 200 processes need 0.2 MB.
const maxMessage = 32 << 20

// errMessage reports that the other side does not follow the protocol.
var errMessage = errors.New("invalid message")

// A message is sent as its length in four bytes, most significant byte first, and as JSON, which
// preserves the difference between nil and empty. Exactly one field is set, apart from Version.
//
// The sensor sends Start and then requests. The child sends Opened, then an answer to each
// request, and the others at any time.
type message struct {
	Version int      `json:",omitempty"`
	Start   *start   `json:",omitempty"`
	Request *request `json:",omitempty"`

	Opened *openResult `json:",omitempty"`
	Answer *reply      `json:",omitempty"`
	XID    *xidCount   `json:",omitempty"`
	Listed []int       `json:",omitempty"` // PIDs of processes, sent before the first answer with them
	Reopen string      `json:",omitempty"` // why the library must be reopened
	Log    *logEntry   `json:",omitempty"`
}

// request asks whether the child works, and for a reading.
type request struct {
	Number uint64
	Read   bool
}

// openResult is the result of opening the library.
type openResult struct {
	Error  string // empty if it is open
	Absent bool   // the error is that there is nothing to read
	Loaded bool   // the error is that of the initialization
}

// reply is the answer to the request of the same number.
type reply struct {
	Number   uint64
	Snapshot *model.Snapshot `json:",omitempty"` // nil if it was not requested
	Error    string          `json:",omitempty"`
	Known    map[string]knownDevice
	Split    []string // addresses of the GPUs with instances that the session does not read
	Hung     []string // keys of the devices with a call that has hung for HangLimit
	Silent   bool     // calls for all devices hang
}

// xidCount is the number of XIDs of one code, or no XID if the device is now watched.
type xidCount struct {
	UUID string
	XID  model.XID
}

// logEntry is a line for the log of the sensor.
type logEntry struct {
	Level  zapcore.Level
	Text   string
	Fields map[string]any
}

// connection sends and receives messages.
type connection struct {
	socket io.ReadWriter
	mu     sync.Mutex // of sending
	buffer []byte     // of receiving
}

// send is safe for concurrent use.
func (c *connection) send(m message) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(body) > maxMessage {
		return fmt.Errorf("%w: %d bytes", errMessage, len(body))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body)))
	_, err = c.socket.Write(append(frame, body...))
	return err
}

// receive waits for the next message. The error is io.EOF if the other side has ended.
func (c *connection) receive() (message, error) {
	var size [4]byte
	if _, err := io.ReadFull(c.socket, size[:]); err != nil {
		return message{}, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxMessage {
		return message{}, fmt.Errorf("%w: %d bytes", errMessage, n)
	}
	if int(n) > cap(c.buffer) {
		c.buffer = make([]byte, n)
	}
	body := c.buffer[:n]
	if _, err := io.ReadFull(c.socket, body); err != nil {
		return message{}, err
	}
	return parseMessage(body)
}

func parseMessage(body []byte) (m message, err error) {
	if err := json.Unmarshal(body, &m); err != nil {
		return message{}, fmt.Errorf("%w: %w", errMessage, err)
	}
	return m, nil
}

// forwarder is a zapcore.Core that sends entries to the sensor.
type forwarder struct {
	zapcore.LevelEnabler
	send   func(message) error
	fields []zapcore.Field
}

// With returns a core with more fields.
func (f *forwarder) With(fields []zapcore.Field) zapcore.Core {
	return &forwarder{f.LevelEnabler, f.send, append(slices.Clip(f.fields), fields...)}
}

// Check adds the core to an entry that is to be logged.
func (f *forwarder) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if f.Enabled(e.Level) {
		return checked.AddCore(e, f)
	}
	return checked
}

// Write sends an entry.
func (f *forwarder) Write(e zapcore.Entry, fields []zapcore.Field) error {
	values := zapcore.NewMapObjectEncoder()
	for _, field := range append(slices.Clip(f.fields), fields...) {
		field.AddTo(values)
	}
	return f.send(message{Log: &logEntry{e.Level, e.Message, values.Fields}})
}

// Sync does nothing.
func (f *forwarder) Sync() error { return nil }
