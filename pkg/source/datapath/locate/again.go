// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"github.com/accelscope/accelscope/pkg/model"
)

// ErrAgain means that the functions of a QP were not found for a reason that may pass: the program destroyed the QP
// meanwhile, as after a connection that was refused, or something could not be read now. Another QP of the context, or
// another attempt, may have a result.
var ErrAgain = errors.New("the search may succeed at another attempt")

// errNoFile means that a function is in no file: its address is not one, or the mappings changed meanwhile.
var errNoFile = errors.New("is in no file")

// classify adds ErrAgain to the reason why the functions of a QP were not found, nil if the functions belong to another context.
func (p *Process) classify(err error, qp, context uint64) error {
	switch {
	case errors.Is(err, model.ErrAbsent), errors.Is(err, fs.ErrPermission):
		return err
	case context != 0 && !p.hasContext(qp, context):
		if gone := p.checkAlive(); gone != nil {
			return gone
		}
		return fmt.Errorf("QP of process %d at %#x is no longer one of the context: %w", p.pid, qp, ErrAgain)
	case err == nil, errors.Is(err, ErrNotReady), isFinal(err):
		return err
	}
	return fmt.Errorf("%w: %w", ErrAgain, err)
}

// hasContext reports whether the memory of a QP still has the address of its context. A program that frees the memory writes
// there: allocators keep their lists in the first bytes.
func (p *Process) hasContext(qp, context uint64) bool {
	var pointer [8]byte
	return p.Read(qp+qpContext, pointer[:]) == nil && binary.LittleEndian.Uint64(pointer[:]) == context
}

// isFinal reports whether the functions of each other QP of the context would not be found either.
func isFinal(err error) bool {
	return (errors.Is(err, errNoProvider) || errors.Is(err, errNoFunction) || errors.Is(err, errNoPoint)) &&
		!errors.Is(err, errNoFile) && !isReadError(err)
}

// isReadError reports whether a file could not be read. A file that ends too early is read.
func isReadError(err error) bool {
	var failed *fs.PathError
	return errors.As(err, &failed)
}
