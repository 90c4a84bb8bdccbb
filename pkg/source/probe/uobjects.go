// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
)

// maxWalks limits the repetitions of a walk through objects that come and go.
const maxWalks = 3

// adoptUobjects records the objects of the uobject layer that are older than the hooks, such as address handles and DEVX
// objects. An iterator of the kernel finds them in the open files of uverbs devices (class/infiniband_verbs/uverbsN/dev); it
// needs bpf_loop, which Linux 5.17 and later have. They are live, and do not count as created.
func (s *sensor) adoptUobjects() error {
	devices, err := hook.Uverbs(s.opts.Sysfs)
	if err != nil {
		return fmt.Errorf("uverbs devices: %w", err)
	}
	first, last, err := ranges(slices.Collect(maps.Keys(devices)))
	if err != nil {
		return err
	}
	if err := errors.Join(
		s.objects.Coll.Variables[gen.ObjectsVarUverbsFirst].Set(first), s.objects.Coll.Variables[gen.ObjectsVarUverbsLast].Set(last),
	); err != nil {
		return fmt.Errorf("uverbs devices: %w", err)
	}
	cut := s.objects.Coll.Variables[gen.ObjectsVarWalksCut]
	for range maxWalks {
		if err := cut.Set(uint64(0)); err != nil {
			return fmt.Errorf("objects of uverbs files: %w", err)
		}
		if _, err := s.objects.Iterate(gen.ObjectsProgAdoptUobjects); err != nil {
			return fmt.Errorf("objects of uverbs files: %w", err)
		}
		var n uint64
		if err := cut.Get(&n); err != nil || n == 0 {
			return err
		}
	}
	return nil
}

// ranges returns the lowest and the highest device number of each major, in the kernel's format (20 bits for the minor). The
// kernel gives uverbs devices the minors 192 to 223 of one major, and then those of another major of their own.
func ranges(numbers []uint32) (first, last [2]uint32, err error) {
	slices.Sort(numbers)
	n := 0
	for i, number := range numbers {
		if i > 0 && number>>20 == numbers[i-1]>>20 {
			last[n-1] = number
			continue
		}
		if n == len(first) {
			return first, last, fmt.Errorf("uverbs devices have more than %d majors", n)
		}
		first[n], last[n] = number, number
		n++
	}
	return first, last, nil
}
