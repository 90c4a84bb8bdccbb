// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"errors"
	"io"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"

	"github.com/accelscope/accelscope/pkg/hook"
)

// HasMulti reports whether the kernel has uprobe_multi links (Linux 6.6).
func HasMulti() bool { return features.HaveBPFLinkUprobeMulti() == nil }

// Prepare has the uprobes of an object attached by uprobe_multi links, if the kernel has them (hook.Spec.Prepare).
func Prepare(spec *ebpf.CollectionSpec, _ *hook.Kernel) error {
	for _, p := range spec.Programs {
		if p.Type == ebpf.Kprobe && strings.HasPrefix(p.SectionName, "u") && HasMulti() { // uprobe/ and uretprobe/
			p.AttachType = ebpf.AttachTraceUprobeMulti
		}
	}
	return nil
}

// Place is where a program is attached: at an offset of a file, or at the return of the function that begins there.
type Place struct {
	Path   string
	Offset uint64
	Return bool
	PID    int // 0: in all processes that map the file
}

// Attach attaches a program by a uprobe_multi link or a perf event. Only a uprobe_multi link can be limited to one
// process. Call it only in the probes of an Operation.
func Attach(program *ebpf.Program, at Place, multi bool, cookie uint64) (io.Closer, error) {
	file, err := link.OpenExecutable(at.Path)
	if err != nil {
		return nil, err
	}
	options := &link.UprobeMultiOptions{Addresses: []uint64{at.Offset}, Cookies: []uint64{cookie}, PID: uint32(at.PID)}
	one := &link.UprobeOptions{Address: at.Offset, Cookie: cookie}
	switch {
	case multi && at.Return:
		return file.UretprobeMulti(nil, program, options)
	case multi:
		return file.UprobeMulti(nil, program, options)
	case at.PID != 0:
		return nil, errors.ErrUnsupported
	case at.Return:
		return file.Uretprobe("", program, one)
	default:
		return file.Uprobe("", program, one)
	}
}
