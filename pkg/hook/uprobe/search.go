// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// MaxSearches bounds the searches of a source that run at once, MaxSearchesOfOwner the searches in processes of one owner. A
// process can make its search hang.
const (
	MaxSearches        = 64
	MaxSearchesOfOwner = MaxSearches / 4
)

// Searches are a source's searches for functions in processes, each in its own goroutine. One goroutine of the source uses
// them. It takes each result from Results, and then calls Ended.
type Searches[R any] struct {
	Results chan *R

	source  string
	drop    func(*R)
	done    <-chan struct{}
	running int
	ofOwner map[model.CgroupID]int
}

// NewSearches returns the searches of a source. When done is closed, nothing takes results anymore, and they are dropped.
func NewSearches[R any](source string, done <-chan struct{}, drop func(*R)) *Searches[R] {
	return &Searches[R]{
		Results: make(chan *R), source: source, done: done, drop: drop, ofOwner: map[model.CgroupID]int{},
	}
}

// HasRoom reports whether another search may begin in a process of an owner. Each process with an unknown owner (0) counts
// as another owner.
func (s *Searches[R]) HasRoom(owner model.CgroupID) bool {
	return s.running < MaxSearches && (owner == 0 || s.ofOwner[owner] < MaxSearchesOfOwner)
}

// Begin calls search with a result to fill, for a process of an owner. If search panics, the result has what search has filled.
func (s *Searches[R]) Begin(owner model.CgroupID, result *R, search func(*R)) {
	s.running++
	s.ofOwner[owner]++
	go safely.Do(s.source, func() {
		defer func() {
			select {
			case s.Results <- result:
			case <-s.done:
				s.drop(result)
			}
		}()
		search(result)
	})
}

// Ended counts that the search in a process of an owner has ended.
func (s *Searches[R]) Ended(owner model.CgroupID) {
	s.running--
	if s.ofOwner[owner]--; s.ofOwner[owner] == 0 {
		delete(s.ofOwner, owner)
	}
}

// Running returns the number of searches that run, or have a result that was not taken.
func (s *Searches[R]) Running() int { return s.running }
