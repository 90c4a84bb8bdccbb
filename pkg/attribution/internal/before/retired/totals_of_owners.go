// SPDX-License-Identifier: Apache-2.0

package retired

import "github.com/accelscope/accelscope/pkg/attribution/internal/before/model"

// Totals are the totals of owners as they were before the tracker.
type Totals struct{ retired }

// Add adds what ended cgroups counted.
func (t *Totals) Add(s *model.Snapshot) { t.add(s) }

// Forget notes cgroups that are about to be forgotten.
func (t *Totals) Forget(s *model.Snapshot, ids []uint64) { t.forget(s, ids) }
