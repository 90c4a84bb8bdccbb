// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/safely"
)

// closeTimeout bounds how long the end of the sensor waits for the disk.
const closeTimeout = time.Second

const inMemory = "the inventory is kept in memory only: a device that vanishes while the sensor or the node is restarted is not missed"

// errSlow reports a disk that does not write in time.
var errSlow = errors.New("the inventory is not written within the limit")

// keeper writes the file in the background, so that a refresh does not wait for the disk.
type keeper struct {
	dir    string
	log    *zap.Logger
	failed atomic.Bool // the last write failed

	mu     sync.Mutex
	latest chan []byte // at most one element, the last
	closed bool
	done   chan struct{}
}

func newKeeper(dir string, log *zap.Logger) *keeper {
	k := &keeper{dir: dir, log: log, latest: make(chan []byte, 1), done: make(chan struct{})}
	go func() {
		defer close(k.done)
		safely.Do("inventory", func() {
			for text := range k.latest {
				k.replace(text)
			}
		})
	}()
	return k
}

// write hands over a text. It replaces a text that still waits.
func (k *keeper) write(text []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	select {
	case <-k.latest:
	default:
	}
	k.latest <- text
}

// replace writes the file. It reports the first of several failures, and their end.
func (k *keeper) replace(text []byte) {
	err := replace(k.dir, text)
	switch {
	case err != nil && !k.failed.Load():
		k.log.Warn(inMemory, zap.String("directory", k.dir), zap.Error(err))
	case err == nil && k.failed.Load():
		k.log.Info("the inventory is written again", zap.String("directory", k.dir))
	}
	k.failed.Store(err != nil)
}

func (k *keeper) close() error {
	k.mu.Lock()
	if !k.closed {
		k.closed = true
		close(k.latest)
	}
	k.mu.Unlock()
	select {
	case <-k.done:
		return nil
	case <-time.After(closeTimeout):
		return errSlow
	}
}
