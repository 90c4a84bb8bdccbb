// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/accelscope/accelscope/pkg/model"
)

// Version is in the first message of each side. Both sides are the same program.
const Version = 1

// maxMessage bounds a message, in bytes. Eight GPUs with 200 processes need 0.2 MB.
const maxMessage = 32 << 20

// ErrMessage says that a message cannot be read.
var ErrMessage = errors.New("invalid message")

// A Message is sent as its length in four bytes, most significant byte first, and as JSON, which preserves the
// difference between nil and empty. Exactly one field is set, apart from Version.
//
// The sensor sends Start and then requests. The child sends Opened, then an answer to each request. It sends the other
// messages at any time.
type Message struct {
	Version int      `json:",omitempty"`
	Start   *Start   `json:",omitempty"`
	Request *Request `json:",omitempty"`

	Opened *OpenResult `json:",omitempty"`
	Answer *Reply      `json:",omitempty"`
	XID    *XIDCount   `json:",omitempty"`
	Listed *Listing    `json:",omitempty"` // sent before the first answer with these processes
	Reopen string      `json:",omitempty"` // why the library must be reopened
	Log    *LogEntry   `json:",omitempty"`
}

// Request asks whether the child works, and for a reading.
type Request struct {
	Number uint64
	Read   bool
}

// OpenResult is the result of opening the library.
type OpenResult struct {
	Error  string // empty if the library is open
	Absent bool   // the node has nothing to read
	Loaded bool   // the library was loaded, and its initialization failed
}

// Listing is a round of a whole GPU.
type Listing struct {
	UUID string
	// Whole reports that no user is missing since the round before. Split reports that processes use MIG instances.
	Whole, Split bool
	Active       bool // something ran on the GPU since the round before, or this is unknown

	Processes []Use // also ended processes with activity since the round before
	Instances []Use // of MIG, all with GPM counters
}

// Use is the use of a GPU by a process, or of a MIG instance, since the round before.
type Use struct {
	PID      int           `json:",omitempty"`
	Instance string        `json:",omitempty"` // see model.GPU
	Listed   bool          `json:",omitempty"` // the process has not ended
	Unknown  bool          `json:",omitempty"` // Busy is unknown
	Busy     time.Duration `json:",omitempty"` // on the SMs
}

// Reply is the answer to the request of the same number.
type Reply struct {
	Number   uint64
	Snapshot *model.Snapshot `json:",omitempty"` // nil if not requested
	Error    string          `json:",omitempty"`
	Known    map[string]KnownDevice
	Split    []string // addresses of GPUs with instances that the session does not read
	Hung     []string // keys of devices with a call that has hung for HangLimit
	Silent   bool     // calls for all devices hang
}

// XIDCount is the number of XIDs of one code. Without an XID it reports that the device is now watched.
type XIDCount struct {
	UUID string
	XID  model.XID
}

// LogEntry is a line for the log of the sensor.
type LogEntry struct {
	Level  zapcore.Level
	Text   string
	Fields map[string]any
}

// Connection sends and receives messages.
type Connection struct {
	Socket io.ReadWriter
	mu     sync.Mutex // for sending
	buffer []byte     // for receiving
}

// Send is safe for concurrent use.
func (c *Connection) Send(m Message) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(body) > maxMessage {
		return fmt.Errorf("%w: %d bytes", ErrMessage, len(body))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body)))
	_, err = c.Socket.Write(append(frame, body...))
	return err
}

// Receive waits for the next message. The error is io.EOF if the other side has ended.
func (c *Connection) Receive() (Message, error) {
	var size [4]byte
	if _, err := io.ReadFull(c.Socket, size[:]); err != nil {
		return Message{}, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxMessage {
		return Message{}, fmt.Errorf("%w: %d bytes", ErrMessage, n)
	}
	if int(n) > cap(c.buffer) {
		c.buffer = make([]byte, n)
	}
	body := c.buffer[:n]
	if _, err := io.ReadFull(c.Socket, body); err != nil {
		return Message{}, err
	}
	return Parse(body)
}

// Parse parses the JSON of a message.
func Parse(body []byte) (m Message, err error) {
	if err := json.Unmarshal(body, &m); err != nil {
		return Message{}, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return m, nil
}
