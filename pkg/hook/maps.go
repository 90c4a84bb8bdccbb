// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"

	"github.com/cilium/ebpf"
)

// batchSize is the number of entries per system call. Fetching one by one costs ten times as
// much.
const batchSize = 1024

// Batches calls f for every entry of a hash map and returns their number. keys and values are
// buffers that the next call reuses; they have at most batchSize elements.
func Batches[K, V any](m *ebpf.Map, keys *[]K, values *[]V, f func(K, *V)) (uint64, error) {
	size := min(batchSize, int(m.MaxEntries()))
	if len(*keys) < size {
		*keys, *values = make([]K, size), make([]V, size)
	}
	var cursor ebpf.MapBatchCursor
	var total uint64
	for {
		n, err := m.BatchLookup(&cursor, *keys, *values, nil)
		for i := range n {
			f((*keys)[i], &(*values)[i])
		}
		total += uint64(n)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// Remove deletes keys; missing keys are ignored.
func Remove[K any](m *ebpf.Map, keys []K) error {
	for _, k := range keys {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}

// Sweep calls visit for every entry of a hash map, and then deletes those for which it returned true. It returns their keys and the
// number of the others. keys and values are buffers, see Batches.
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
