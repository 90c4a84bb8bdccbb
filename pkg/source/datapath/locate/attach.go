// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"io"

	"github.com/cilium/ebpf"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
)

// Place is where a program is attached.
type Place = uprobe.Place

// Attach attaches a program at a place, in a probe of a uprobe.Operation.
func Attach(program *ebpf.Program, at Place, multi bool, cookie uint64) (io.Closer, error) {
	return uprobe.Attach(program, at, multi, cookie)
}
