// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"errors"
	"fmt"
)

const (
	// maxSlowOfOwner is how many slow files of an owner open the breaker for all files that only this owner has.
	maxSlowOfOwner = 3
	// maxSlow bounds the remembered files. A node with more slow files is not probed any more.
	maxSlow = 1024
)

// Errors of an Operation. ErrRefused holds until the sensor ends or the file changes. ErrDeferred passes: turn has the
// time of the next attempt.
var (
	ErrRefused  = errors.New("refused")
	ErrDeferred = errors.New("deferred")
)

// breaker remembers slow files. It opens for a file with its first slow call, and for an owner with the third slow file
// that only this owner had. A file of several owners, such as a file of an image or of the node, does not count against
// them: they did not bring it. The file is lost for all of them, because a call cannot leave out the slow process.
type breaker struct {
	files  map[uint64]error // by address space
	owners map[uint64]int
}

func newBreaker() breaker { return breaker{files: map[uint64]error{}, owners: map[uint64]int{}} }

func (b *breaker) open(mapping uint64, owners []uint64, err error) {
	if b.files[mapping] != nil {
		return
	}
	b.files[mapping] = err
	if len(owners) == 1 && owners[0] != 0 {
		b.owners[owners[0]]++
	}
}

func (b *breaker) check(mapping uint64, owners []uint64) error {
	if err := b.files[mapping]; err != nil {
		return err
	}
	if len(b.files) >= maxSlow {
		return fmt.Errorf("%w: changing the probes of %d files took too long", ErrRefused, maxSlow)
	}
	for _, o := range owners {
		if b.owners[o] < maxSlowOfOwner {
			return nil
		}
	}
	if len(owners) > 0 {
		return fmt.Errorf("%w: changing the probes of %d other files of the workload took too long", ErrRefused, maxSlowOfOwner)
	}
	return nil
}
