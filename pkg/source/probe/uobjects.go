// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"

	"github.com/cilium/ebpf/link"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
)

// maxWalks limits the repetitions of a walk through objects that come and go.
const maxWalks = 3

// adoptUobjects records the objects of the uobject layer that are older than the hooks, such as address handles and DEVX
// objects. An iterator of the kernel finds them in the open files of uverbs devices (class/infiniband_verbs/uverbsN/dev); it
// needs bpf_loop, which Linux 5.17 and later have. They are live, and do not count as created.
func (s *sensor) adoptUobjects() error {
	if err := hook.SetUverbs(s.objects.Coll, s.opts.Sysfs); err != nil {
		return err
	}
	iterator, err := s.objects.Load(gen.ObjectsProgAdoptUobjects)
	if err != nil {
		return fmt.Errorf("iterator over open files: %w", err)
	}
	defer iterator.Close() //nolint:errcheck // nothing was written
	cut := s.objects.Coll.Variables[gen.ObjectsVarWalksCut]
	for range maxWalks {
		if err := cut.Set(uint64(0)); err != nil {
			return fmt.Errorf("objects of uverbs files: %w", err)
		}
		if _, err := hook.Iterate(link.IterOptions{Program: iterator}); err != nil {
			return fmt.Errorf("objects of uverbs files: %w", err)
		}
		var n uint64
		if err := cut.Get(&n); err != nil || n == 0 {
			return err
		}
	}
	return nil
}
