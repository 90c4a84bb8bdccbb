// SPDX-License-Identifier: Apache-2.0

package safely_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/accelscope/accelscope/pkg/safely"
)

// A panic is recorded for its source only, the first one with its stack.
func TestDo(t *testing.T) {
	var wg sync.WaitGroup
	for _, value := range []string{"first", "second"} {
		safely.Go(&wg, "TestDo", func() { explode(value) })
		wg.Wait()
	}
	first, count := safely.Panicked("TestDo")
	if count != 2 || first == nil || first.Error() != "panic: first" || !bytes.Contains(first.Stack, []byte("explode")) {
		t.Errorf("%d panics, %v", count, first)
	}
	if first, count := safely.Panicked("another source"); first != nil || count != 0 {
		t.Errorf("another source: %d panics, %v", count, first)
	}
}

func explode(value string) { panic(value) }

// A panic in a goroutine of a Group is a panic of the call that waits, with the stack of the goroutine.
func TestGroup(t *testing.T) {
	defer func() {
		e := safely.Recovered(recover())
		if e.Value != "group" || !bytes.Contains(e.Stack, []byte("explode")) {
			t.Errorf("%v\n%s", e, e.Stack)
		}
	}()
	var g safely.Group
	g.Go(func() { explode("group") })
	g.Go(func() {})
	g.Wait()
	t.Error("Wait returned")
}

// inChild are the files whose goroutines run in a child process: a panic ends only the child, and the sensor starts
// another.
var inChild = map[string]bool{"source/nvidia/nvml/session.go": true, "source/nvidia/nvml/serve.go": true}

// TestGoroutines checks that sources and the engine start no goroutine whose panic ends the sensor. Package child is
// exempt: its goroutines start a program and wait for it.
func TestGoroutines(t *testing.T) {
	files, checked := token.NewFileSet(), 0
	for _, dir := range []string{"source", "engine", "event", "hook"} {
		err := filepath.WalkDir(filepath.Join("..", dir), func(path string, _ fs.DirEntry, err error) error {
			name, _ := filepath.Rel("..", path)
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || inChild[name] {
				return err
			}
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			checked++
			for _, at := range bare(file) {
				t.Errorf("%s: a goroutine that is started without package safely", files.Position(at))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if checked < 100 {
		t.Errorf("only %d files were checked", checked)
	}
}

// The check notices each way to start a goroutine.
func TestBare(t *testing.T) {
	for code, want := range map[string]int{
		`go f()`: 1, `go func() {}()`: 1, `var wg sync.WaitGroup; wg.Go(f)`: 1, `s.running.Go(f)`: 1,
		`go safely.Do("x", f)`: 0, `var g safely.Group; g.Go(f)`: 0, `safely.Go(&wg, "x", f)`: 0,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\nfunc x() { "+code+" }", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := bare(file); len(got) != want {
			t.Errorf("%s: %d, want %d", code, len(got), want)
		}
	}
}

// bare returns where a file starts a goroutine without package safely.
func bare(file *ast.File) []token.Pos {
	var at []token.Pos
	groups := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			if of, name := selector(n.Type); of == "safely" && name == "Group" {
				for _, id := range n.Names {
					groups[id.Name] = true
				}
			}
		case *ast.GoStmt:
			if of, name := selector(n.Call.Fun); of != "safely" || name != "Do" {
				at = append(at, n.Pos())
			}
		case *ast.CallExpr:
			of, name := selector(n.Fun)
			if name == "Go" && of != "safely" && !groups[of] {
				at = append(at, n.Pos())
			}
		}
		return true
	})
	return at
}

// selector returns the parts of X.Name; X is empty if it is not an identifier.
func selector(e ast.Expr) (x, name string) {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	if id, ok := s.X.(*ast.Ident); ok {
		x = id.Name
	}
	return x, s.Sel.Name
}

// TestEach: each index is passed once, by no more goroutines than the limit, and a panic reaches the caller.
func TestEach(t *testing.T) {
	var running, most atomic.Int64
	done := make([]atomic.Int64, 100)
	safely.Each(len(done), 7, func(i int) {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		done[i].Add(1)
	})
	for i := range done {
		if n := done[i].Load(); n != 1 {
			t.Errorf("%d: %d times", i, n)
		}
	}
	if n := most.Load(); n > 7 {
		t.Errorf("%d at a time", n)
	}
	safely.Each(0, 7, func(int) { t.Error("called") })
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	safely.Each(3, 2, func(int) { panic("driver") })
}
