// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
)

// inKernel are file systems without a block device, a server or a process: the kernel itself answers.
var inKernel = strings.Fields("tmpfs ramfs btrfs bcachefs zfs")

// answeringOf returns the device or server that answers statfs for a file system: the host in HOST:/PATH or
// //HOST/PATH, or else the device number. isRemote: the kernel itself does not answer.
func answeringOf(f *model.Filesystem) (answering string, isRemote bool) {
	number := f.Major + ":" + f.Minor
	if f.Major != "0" || slices.Contains(inKernel, f.Type) {
		return number, false
	}
	if share, ok := strings.CutPrefix(f.Device, "//"); ok {
		host, _, _ := strings.Cut(share, "/")
		return host, true
	}
	if host, _, ok := strings.Cut(f.Device, ":/"); ok {
		return host, true
	}
	return number, true
}

// statfsBelow returns statfs(2) of paths of a root directory. A directory of a mount point may have become a link,
// because something else was mounted above it.
func statfsBelow(root string) func(path string, st *unix.Statfs_t) error {
	if root == "/" {
		return unix.Statfs
	}
	return func(path string, st *unix.Statfs_t) error {
		fd, err := boundedfile.OpenBelow(root, path, unix.O_PATH)
		if err != nil {
			return errors.Unwrap(err) // the label device_error has no path
		}
		defer unix.Close(fd)
		return unix.Fstatfs(fd, st)
	}
}

type answers struct {
	mu   sync.Mutex
	list []answer
}

type answer struct {
	st  unix.Statfs_t
	err error
}

func (a *answers) set(i int, got answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list[i] = got
}

// statfsAll calls statfs for all mount points, because a server of a network file system or a disk may never answer:
// different devices and servers at once, mount points of the same device or server one after the other. While a call
// hangs, its device or server gets no further call, and if too many hang, others get no call either.
func (m *mountReader) statfsAll() []model.Filesystem {
	ctx := context.Background()
	deadline := time.Now().Add(callTimeout)
	all, got := m.mounts, &answers{list: make([]answer, len(m.mounts))}
	var pending []*hang.Pending[struct{}]
	for _, isRemote := range []bool{false, true} {
		calls := &m.local
		if isRemote {
			calls = &m.remote
		}
		keys, byKey := m.byAnswering(isRemote)
		for _, key := range keys {
			mounts := byKey[key]
			for _, i := range mounts {
				got.list[i].err = hang.ErrStuck
			}
			pending = append(pending, calls.Start(ctx, key, time.Until(deadline), func() (struct{}, error) {
				for _, i := range mounts {
					var a answer
					a.err = m.statfs(all[i].path, &a.st)
					got.set(i, a)
				}
				return struct{}{}, nil
			}))
		}
	}
	for _, p := range pending {
		_, _ = p.Wait(ctx) // a missing answer is an ErrStuck
	}
	got.mu.Lock()
	defer got.mu.Unlock()
	out := make([]model.Filesystem, len(all))
	for i, k := range all {
		out[i] = k.Filesystem
		fill(&out[i], &got.list[i].st, got.list[i].err)
	}
	return out
}

// byAnswering returns the indexes of mount points by the device or server that answers for them, and the keys in order.
func (m *mountReader) byAnswering(isRemote bool) (keys []string, byKey map[string][]int) {
	byKey = map[string][]int{}
	for i, k := range m.mounts {
		if k.isRemote != isRemote {
			continue
		}
		if byKey[k.answering] == nil {
			keys = append(keys, k.answering)
		}
		byKey[k.answering] = append(byKey[k.answering], i)
	}
	return keys, byKey
}
