// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// EnergyMethod is how an owner's energy of a GPU was found.
type EnergyMethod string

// The methods of energy.
const (
	EnergyExclusive EnergyMethod = "exclusive" // the only user of the GPU in the whole interval
	EnergyActivity  EnergyMethod = "activity"  // divided by the time on the SMs
	EnergyMIG       EnergyMethod = "mig"       // divided by slices, and by their activity
)

// energyUser is a user of a GPU in an interval, with the weights of the user's parts.
type energyUser struct {
	owner   identity.OwnerID
	busy    float64 // activity
	held    float64 // how much of the GPU is allocated to the user
	unknown bool    // the activity is not known
}

// divideEnergy divides the energy of an interval among users. An only user gets all. Of several users, those to whom
// the GPU is allocated get the idle part, which is all if nothing was active, and 0 if it is unknown; the others are
// divided by activity, if the activity of all users is known. The shares never exceed the energy; the remainder is
// nobody's. With idleToNobody, no user gets the idle part.
func divideEnergy(energy uint64, idle model.Optional, users []energyUser, idleToNobody bool) []uint64 {
	shares := make([]uint64, len(users))
	active, unknown := false, false
	for i := range users {
		active, unknown = active || users[i].busy > 0, unknown || users[i].unknown
	}
	still := energy
	if active || unknown {
		still = 0
		if idle.Known && idle.Value > 0 {
			still = min(uint64(min(idle.Value, float64(energy))), energy)
		}
	}
	switch {
	case len(users) == 1:
		if shares[0] = energy; idleToNobody {
			shares[0] -= still
		}
		return shares
	case !idleToNobody:
		give(shares, still, users, func(u *energyUser) float64 { return u.held })
	}
	if !unknown {
		give(shares, energy-still, users, func(u *energyUser) float64 { return u.busy })
	}
	return shares
}

// give adds n to the shares in proportion to the weights of users, and nothing if all weights are 0. The rounded shares
// add up to n.
func give(shares []uint64, n uint64, users []energyUser, weight func(*energyUser) float64) {
	var sum, upTo float64
	for i := range users {
		sum += weight(&users[i])
	}
	if sum <= 0 {
		return
	}
	var given uint64
	for i := range users {
		upTo += weight(&users[i])
		next := min(uint64(float64(n)*(upTo/sum)), n)
		shares[i] += next - given
		given = next
	}
}
