// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"syscall"

	"github.com/cilium/ebpf"
)

// New buffers have firstBatch entries. They double with each system call that a map needs, up to batchSize. Fetching
// single entries costs ten times as much.
const (
	firstBatch = 64
	batchSize  = 1024
)

// Batches calls f for every entry of a hash map and returns their number. keys and values are buffers that the next
// call reuses; they have at most batchSize elements.
func Batches[K, V any](m *ebpf.Map, keys *[]K, values *[]V, f func(K, *V)) (uint64, error) {
	largest := min(batchSize, int(m.MaxEntries()))
	if len(*keys) == 0 {
		*keys, *values = makeBatch[K, V](min(firstBatch, largest))
	}
	var cursor ebpf.MapBatchCursor
	var total uint64
	for {
		n, err := m.BatchLookup(&cursor, *keys, *values, nil)
		for i := range n {
			f((*keys)[i], &(*values)[i])
		}
		total += uint64(n)
		more := len(*keys) < largest
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			return total, nil
		case errors.Is(err, syscall.ENOSPC) && more: // a bucket of the map has more entries
		case err != nil:
			return total, err
		}
		if more {
			*keys, *values = makeBatch[K, V](min(2*len(*keys), largest))
		}
	}
}

func makeBatch[K, V any](n int) ([]K, []V) { return make([]K, n), make([]V, n) }

// Remove deletes keys and ignores missing keys.
func Remove[K any](m *ebpf.Map, keys []K) error {
	for _, k := range keys {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}

// Sweep calls visit for every entry of a hash map, and deletes the entries for which visit returned true. It returns
// the deleted keys and the number of remaining entries. keys and values are buffers, see Batches.
func Sweep[K, V any](m *ebpf.Map, keys *[]K, values *[]V, visit func(*K, *V) (drop bool)) (gone []K, left uint64, err error) {
	n, err := Batches(m, keys, values, func(k K, v *V) {
		if visit(&k, v) {
			gone = append(gone, k)
		}
	})
	if err == nil {
		err = Remove(m, gone)
	}
	if err != nil {
		return nil, 0, err
	}
	return gone, n - uint64(len(gone)), nil
}
