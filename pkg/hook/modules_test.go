// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// Offsets of ib_qp.qp_num: in the kernel image, in out-of-tree modules, and in another build of these modules.
const (
	inbox   = 8
	padded  = 48
	another = 88
)

// The variables have the types that the files describe. Only the kernel image has struct rdma_ah_attr.
const device = "struct ib_device { unsigned index; };\n"

var structures = map[int]string{
	inbox:   device + "struct ib_qp { struct ib_device *device; unsigned qp_num; } qp; struct rdma_ah_attr { int type; } ah;",
	padded:  device + "struct ib_qp { long padding[5]; struct ib_device *device; unsigned qp_num; } qp;",
	another: device + "struct ib_qp { long padding[10]; struct ib_device *device; unsigned qp_num; } qp;",
}

// moduleFile compiles structures like the build of a module, and adds the types as the user guide says. base is the
// file with the types of the kernel, or "" for complete types.
func moduleFile(t *testing.T, qp int, base string) string {
	t.Helper()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(file("m.c"), []byte(structures[qp]), 0o600); err != nil {
		t.Fatal(err)
	}
	pahole := []string{"pahole", "-J", file("m.ko")}
	if base != "" {
		pahole = []string{"pahole", "-J", "--btf_base=" + base, file("m.ko")}
	}
	for _, args := range [][]string{
		{"gcc", "-g", "-c", "-o", file("m.o"), file("m.c")},
		{"ld", "-r", "--build-id=sha1", "-o", file("m.ko"), file("m.o")},
		pahole,
		{"strip", "--strip-debug", file("m.ko")},
	} {
		if out, err := child.Command(context.Background(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	return file("m.ko")
}

func section(t *testing.T, file, name string) []byte {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := f.Section(name)
	if s == nil {
		t.Fatalf("%s has no section %s", file, name)
	}
	data, err := s.Data()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestModules: which types describe the structures of RDMA modules. The flags are what sysfs of the guest shows for
// in-tree and out-of-tree modules.
func TestModules(t *testing.T) {
	kernel := moduleFile(t, inbox, "")
	file := map[int]string{padded: moduleFile(t, padded, ""), another: moduleFile(t, another, "")}
	split := map[int]string{inbox: moduleFile(t, inbox, kernel), padded: moduleFile(t, padded, kernel), another: moduleFile(t, another, kernel)}
	type modules [2]int // offset in the types of ib_core and ib_uverbs; 0: no types
	const refuse = 0
	for name, c := range map[string]struct {
		taint  string
		btf    modules // in the kernel
		loaded modules // the loaded builds, as they are among the files
		files  modules // in the directory
		want   int     // the offset that is read
		shared bool    // only structures that the kernel image also describes
		// complete: the types are from files, and the kernel image is not used.
		complete bool
		reason   string // why types are refused
	}{
		"the kernel's own, before 5.11": {taint: "\n", want: inbox, shared: true, reason: "CONFIG_DEBUG_INFO_BTF_MODULES"},
		"the kernel's own":              {taint: "\n", btf: modules{inbox, inbox}, want: inbox},
		"the kernel's own, with files":  {taint: "\n", loaded: modules{padded, padded}, files: modules{padded, padded}, want: padded, complete: true},
		"out of tree":                   {taint: "OE\n", want: refuse, reason: "ib_core: not the kernel's own build (taint OE)"},
		"out of tree, one with types":   {taint: "OE\n", btf: modules{padded, 0}, want: refuse, reason: "ib_uverbs: not the kernel's own build"},
		"out of tree, with types":       {taint: "OE\n", btf: modules{padded, padded}, want: padded},
		"out of tree, signed":           {taint: "O\n", want: refuse, reason: "(taint O)"},
		"out of tree, with files":       {taint: "OE\n", loaded: modules{padded, padded}, files: modules{padded, padded}, want: padded, complete: true},
		"out of tree, with a file":      {taint: "OE\n", loaded: modules{padded, padded}, files: modules{padded, 0}, want: refuse, reason: "ib_uverbs: no such file or directory"},
		"out of tree, files of other":   {taint: "OE\n", loaded: modules{padded, padded}, files: modules{another, padded}, want: refuse, reason: "another build of the module: build ID "},
		"out of tree, types and files":  {taint: "OE\n", btf: modules{padded, padded}, loaded: modules{padded, padded}, files: modules{another, another}, want: padded},
		"out of tree, types or files":   {taint: "OE\n", btf: modules{padded, 0}, loaded: modules{padded, padded}, files: modules{0, padded}, want: padded, complete: true},
		"out of tree, of two builds":    {taint: "OE\n", btf: modules{padded, another}, want: refuse, reason: "ib_core and ib_uverbs contradict each other"},
		"without a signature":           {taint: "E\n", want: refuse, reason: "(taint E)"},
		"of another kernel, by force":   {taint: "F\n", btf: modules{padded, padded}, want: refuse, reason: "(taint F)"},
		"of another kernel, with files": {taint: "F\n", btf: modules{inbox, inbox}, loaded: modules{padded, padded}, files: modules{padded, padded}, want: padded, complete: true},
		"built in or not loaded":        {want: inbox, shared: true, reason: "CONFIG_DEBUG_INFO_BTF_MODULES"},
	} {
		t.Run(name, func(t *testing.T) {
			sysfs, dir := t.TempDir(), t.TempDir()
			for i, module := range rdmaModules {
				state := filepath.Join(sysfs, "module", module)
				if c.taint != "" {
					write(t, filepath.Join(state, "taint"), []byte(c.taint))
				}
				if c.btf[i] != 0 {
					write(t, filepath.Join(sysfs, "kernel/btf", module), section(t, split[c.btf[i]], ".BTF"))
				}
				if c.loaded[i] != 0 {
					write(t, filepath.Join(state, "notes/.note.gnu.build-id"), section(t, file[c.loaded[i]], buildIDNote))
				}
				if c.files[i] != 0 {
					data, err := os.ReadFile(file[c.files[i]])
					if err != nil {
						t.Fatal(err)
					}
					write(t, filepath.Join(dir, module), data)
				}
			}
			spec, err := btf.LoadSpec(kernel)
			if err != nil {
				t.Fatal(err)
			}
			kernel := &Kernel{Types: spec}
			kernel.loadModules(sysfs, dir)
			peers, err := gen.LoadPeers()
			if err != nil {
				t.Fatal(err)
			}
			targets, err := kernel.targets(peers)
			if err != nil {
				t.Fatal(err)
			}
			o := &Object{Kernel: kernel, differ: ambiguous(peers, targets)}
			shared, private := o.Readable(CoreStructures), o.Readable(UverbsStructures)
			if got := shared == nil; got != (c.want != refuse) {
				t.Errorf("shared structures: %v", shared)
			}
			if got := private == nil; got != (c.want != refuse && !c.shared) {
				t.Errorf("structures of modules: %v", private)
			}
			if private != nil && (!strings.Contains(private.Error(), c.reason) || !errors.Is(private, ErrTypes) || !errors.Is(private, model.ErrUnsupported)) {
				t.Errorf("reason %q, want %q", private, c.reason)
			}
			if err := o.Readable(NoStructures); err != nil {
				t.Errorf("no structures: %v", err)
			}
			if c.want == refuse {
				return
			}
			var qp *btf.Struct
			if err := targets.TypeByName("ib_qp", &qp); err != nil {
				t.Fatal(err)
			}
			for _, m := range qp.Members {
				if m.Name == "qp_num" && m.Offset.Bytes() != uint32(c.want) {
					t.Errorf("qp_num is read at %d, want %d", m.Offset.Bytes(), c.want)
				}
			}
			// The types in files are complete.
			var ah *btf.Struct
			if err := targets.TypeByName("rdma_ah_attr", &ah); (err == nil) == c.complete {
				t.Errorf("a type of the kernel image alone: %v", err)
			}
		})
	}
}

// TestFiles: a file that does not describe the loaded module is refused.
func TestFiles(t *testing.T) {
	good := moduleFile(t, padded, "")
	note := section(t, good, buildIDNote)
	text, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	without := func(name string) []byte {
		path := filepath.Join(t.TempDir(), "m.ko")
		write(t, path, text)
		if out, err := child.Command(context.Background(), "objcopy", "--remove-section="+name, path).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	split, err := os.ReadFile(moduleFile(t, padded, moduleFile(t, inbox, "")))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data []byte
		note []byte
	}{
		"raw BTF":                   {section(t, good, ".BTF"), note},
		"no type information":       {without(".BTF"), note},
		"no build ID":               {without(buildIDNote), note},
		"no build ID of the module": {text, nil},
		"cut":                       {text[:len(text)/2], note},
		"on top of other types":     {split, nil},
		"empty":                     {nil, note},
	} {
		path := filepath.Join(t.TempDir(), "ib_core")
		write(t, path, c.data)
		if name == "on top of other types" {
			c.note = section(t, path, buildIDNote)
		}
		if spec, err := readTypes(path, c.note); err == nil {
			t.Errorf("%s: %v", name, spec)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
	path := filepath.Join(t.TempDir(), "ib_core")
	write(t, path, text)
	if _, err := readTypes(path, note); err != nil {
		t.Error(err)
	}
	if got := buildID(note); len(got) != 40 || !bytes.Contains(note, []byte("GNU\x00")) {
		t.Errorf("build ID %q", got)
	}
}

// TestTargets: relocation against the selected types has the same result as against all types of this kernel.
func TestTargets(t *testing.T) {
	kernel, err := ReadKernel("")
	if err != nil {
		t.Fatal(err)
	}
	for name, load := range map[string]func() (*ebpf.CollectionSpec, error){
		"verbs": gen.LoadVerbs, "objects": gen.LoadObjects, "peers": gen.LoadPeers, "cgroups": gen.LoadCgroups,
		"devices": gen.LoadDevices, "datapath": gen.LoadDatapath,
	} {
		s, err := load()
		if err != nil {
			t.Fatal(err)
		}
		targets, err := kernel.targets(s)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		relocated := 0
		for _, p := range s.Programs {
			r := relocations(p)
			relocated += len(r)
			want, err := btf.CORERelocate(r, append([]*btf.Spec{kernel.Types}, kernel.Modules...), s.ByteOrder, anyID)
			if err != nil {
				t.Fatal(err)
			}
			got, err := btf.CORERelocate(r, []*btf.Spec{targets}, s.ByteOrder, anyID)
			if err != nil {
				t.Fatal(err)
			}
			for i := range want {
				if got[i].String() != want[i].String() {
					t.Errorf("%s %s: %v is %v, want %v", name, p.Name, r[i], &got[i], &want[i])
				}
			}
		}
		t.Logf("%s: %d relocations", name, relocated)
		if relocated == 0 {
			t.Errorf("%s has no relocations", name)
		}
	}
}
