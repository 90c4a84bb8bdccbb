// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
)

// Again begins a line in the summary of a stage about a guest that ran again; package stages counts these lines.
const Again = "ran again: "

// MostAgain is the number of guests that may run again in a run of tests: one guest hangs now and then, two mean
// something.
const MostAgain = 1

// ranAgain is the number of guests of this process that ran again.
var ranAgain atomic.Int32

// RunsAgain reports whether a guest that ended with an error may run again, on one thread. It says so in the output and
// in the summary.
func RunsAgain(out io.Writer, kernel string, err error) bool {
	if out == nil {
		out = os.Stderr
	}
	if ranAgain.Add(1) > MostAgain {
		fmt.Fprintf(out, "%v\nnot once more: it is guest %d of this run\n", err, ranAgain.Load())
		return false
	}
	reason, _, _ := strings.Cut(err.Error(), "\n")
	fmt.Fprintf(out, "%v\nonce more, on one thread\nstage: %skernel %s, %s\n", err, Again, or(kernel, defaultKernel), reason)
	return true
}
