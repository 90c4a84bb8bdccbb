// SPDX-License-Identifier: Apache-2.0

//go:build vm

package guides

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/accelscope/accelscope/tests/machines/machine"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// blockTimeout is the maximum duration of a block, on a slow machine.
const blockTimeout = 5 * time.Minute

// A stage runs the commands of documents.
type stage struct {
	*machine.Machine
	checkout, dir string // the repository; a directory shared with the machine
}

// One document after the other, because all build bin/accelscope.
func TestReadme(t *testing.T) { follow(t, "README.md") }

func TestDeploy(t *testing.T) { follow(t, "deploy/README.md") }

// TestDocs runs the commands of all pages of docs and of the runbooks on one machine. The page that starts a sensor is
// first.
func TestDocs(t *testing.T) {
	pages, err := filepath.Glob("../../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal("no pages", err)
	}
	order := []string{"docs/rest.md"}
	for _, page := range pages {
		if name := "docs/" + filepath.Base(page); !slices.Contains(order, name) {
			order = append(order, name)
		}
	}
	follow(t, append(order, runbooks)...)
}

// runbooks is the directory of the runbooks. They share most commands: each command is run once, in one block.
const runbooks = "deploy/prometheus/runbooks"

// own matches this project's commands in runbooks. Other commands, such as ibstat, need hardware.
var own = regexp.MustCompile(`^(accelscope|curl) `)

// read returns the blocks of a document, or of all runbooks.
func read(checkout, document string) ([]block, error) {
	if document != runbooks {
		text, err := os.ReadFile(filepath.Join(checkout, document))
		if err != nil {
			return nil, err
		}
		return blocks(string(text))
	}
	all := block{commands: []string{`export PATH="$PWD/bin:$PATH"`}}
	files, err := filepath.Glob(filepath.Join(checkout, runbooks, "*.md"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		found, err := blocks(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, b := range found {
			for _, command := range b.commands {
				if own.MatchString(command) && !slices.Contains(all.commands, command) {
					all.commands = append(all.commands, command)
				}
			}
		}
	}
	return []block{all}, nil
}

// A page is a document with its commands.
type page struct {
	document string
	blocks   []block
	commands map[string]command
}

// follow runs the commands of documents from beginning to end, one document after the other, on one machine.
func follow(t *testing.T, documents ...string) {
	checkout, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{checkout: checkout, dir: t.TempDir()}
	pages := make([]page, len(documents))
	for i, document := range documents {
		found, err := read(checkout, document)
		if err != nil {
			t.Fatalf("%s: %v", document, err)
		}
		pages[i] = page{document, found, known(t, document, found)}
	}
	for _, p := range pages {
		for _, b := range p.blocks {
			for _, text := range b.commands {
				if c := p.commands[first(text)]; c.place == here {
					s.here(t, p.document, b, c)
				}
			}
		}
	}
	s.start(t)
	for _, p := range pages {
		for _, b := range p.blocks {
			s.play(t, p.document, b, p.commands)
		}
	}
}

func first(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// known checks that exactly the printed commands of a document are listed.
func known(t *testing.T, document string, found []block) map[string]command {
	t.Helper()
	commands, printed := map[string]command{}, map[string]bool{}
	for _, c := range documents[document] {
		commands[c.text] = c
	}
	for _, b := range found {
		for _, text := range b.commands {
			printed[first(text)] = true
			if c, ok := commands[first(text)]; !ok {
				t.Errorf("%s:%d: %q is in no list: say in commands_test.go where it is run", document, b.line, first(text))
			} else if c.place == none && c.why == "" {
				t.Errorf("%q is not run, and nothing says why", c.text)
			}
		}
	}
	for text := range commands {
		if !printed[text] {
			t.Errorf("%s has no command %q", document, text)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	return commands
}

// here runs a command that builds, and compares its output if it is the only command of its block.
func (s *stage) here(t *testing.T, document string, b block, c command) {
	t.Helper()
	begin := time.Now()
	cmd := child.Command(t.Context(), "bash", "-c", c.text)
	cmd.Dir, cmd.Env = s.checkout, append(os.Environ(), c.env)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", c.env, c.text, err, out)
	}
	if err := prints(string(out), b.output); err != nil && len(b.commands) == 1 {
		t.Errorf("%s:%d: %v, but:\n%s", document, b.line, err, out)
	}
	t.Logf("%s %s: %v", c.env, c.text, time.Since(begin).Round(time.Second))
}

// start boots the copy of this machine, and adds programs that Debian lacks.
func (s *stage) start(t *testing.T) {
	t.Helper()
	for name, pkg := range map[string]string{"render": "./render", "helm": "helm.sh/helm/v3/cmd/helm"} {
		// Helm's releases set this variable at build time: the Kubernetes version for rendering.
		const flags = "-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=37"
		build := child.Command(t.Context(), "go", "build", "-ldflags", flags, "-o", filepath.Join(s.dir, name), pkg)
		build.Dir = filepath.Join(s.checkout, "tests/suites/deploy")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", pkg, err, out)
		}
	}
	// Debian 12's kubectl does not support components. This program renders with kustomize's library, and decodes
	// strictly.
	kubectl := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = kustomize ] && exec %s/render %s ../../$2\n", s.dir, s.checkout)
	inventory := "[accelscope]\nnode001 ansible_connection=local ansible_become=false\n"
	for name, text := range map[string]string{"kubectl": kubectl, "inventory": inventory} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m, err := machine.Start(t.Context(), s.dir, s.checkout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	s.Machine = m
}

// variables are the variables that a reader has to set, and files that make this machine similar to a reader's node.
func (s *stage) variables() string {
	return "export REGISTRY=registry.example.org/team DIGEST=sha256:" + strings.Repeat("0123456789abcdef", 4) + " PASSWORD=scrape NODE=node001" +
		" ANSIBLE_INVENTORY=" + s.dir + "/inventory PATH=" + s.dir + ":" + os.Getenv("PATH") + "\n"
}

// play runs a block's commands for a node in one shell, and compares their output.
func (s *stage) play(t *testing.T, document string, b block, commands map[string]command) {
	t.Helper()
	var script []string
	for _, text := range b.commands {
		c := commands[first(text)]
		if c.check != nil {
			if err := c.check(s, text); err != nil {
				t.Errorf("%s:%d: %s: %v", document, b.line, text, err)
			}
		}
		switch c.place {
		case serve:
			s.serve(t, text)
		case watch:
			script = append(script, "timeout 5 "+text+" || [ $? = 124 ]")
		case node:
			script = append(script, text)
		}
	}
	if len(script) == 0 {
		return
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), blockTimeout)
	defer cancel()
	out, err := s.Sh(ctx, s.variables()+"cd "+s.checkout+"\nset -e -o pipefail\n"+strings.Join(script, "\n"))
	if err != nil {
		t.Fatalf("%s:%d: %v: %s\nof\n%s", document, b.line, err, out, strings.Join(script, "\n"))
	}
	if err := prints(out, b.output); err != nil {
		t.Errorf("%s:%d: %v, but:\n%s", document, b.line, err, out)
	}
	t.Logf("%s:%d: %v", document, b.line, time.Since(begin).Round(100*time.Millisecond))
}

func (s *stage) serve(t *testing.T, text string) {
	t.Helper()
	cmd := s.Command(t.Context(), "bash", "-c", s.variables()+"cd "+s.checkout+"; "+text+" >"+s.dir+"/log 2>&1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // the process ends with the machine
	out, err := s.Sh(t.Context(), "curl -sf --retry 60 --retry-delay 1 --retry-all-errors http://127.0.0.1:9847/readyz")
	if log, _ := os.ReadFile(filepath.Join(s.dir, "log")); err != nil {
		t.Fatalf("%s: %v: %s%s", text, err, out, log)
	}
}

// files checks that the files after -f or -k exist.
func files(s *stage, text string) error {
	var errs []error
	words := strings.Fields(text)
	for i, word := range words[:len(words)-1] {
		if word == "-f" || word == "-k" {
			_, err := os.Stat(filepath.Join(s.checkout, words[i+1]))
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// inManifests checks that the applied overlay has the objects that a command names.
func inManifests(s *stage, text string) error {
	out, err := child.Command(context.Background(), filepath.Join(s.dir, "render"), s.checkout, "overlays/privileged").Output()
	if err != nil {
		return err
	}
	for word := range strings.FieldsSeq(text) {
		if name, ok := strings.CutPrefix(word, "daemonset/"); ok && !strings.Contains(string(out), `"DaemonSet/`+name+`"`) {
			return fmt.Errorf("the manifests have no %s", word)
		}
	}
	return nil
}

// values checks that the chart has the values that a command sets.
func values(s *stage, text string) error {
	data, err := os.ReadFile(filepath.Join(s.checkout, "deploy/helm/accelscope/values.yaml"))
	if err != nil {
		return err
	}
	var root map[string]any
	if err := yaml.Unmarshal(data, &root); err != nil {
		return err
	}
	words := strings.Fields(text)
	for i, word := range words[:len(words)-1] {
		if word != "--set" {
			continue
		}
		path, _, _ := strings.Cut(words[i+1], "=")
		at := any(root)
		for key := range strings.SplitSeq(path, ".") {
			m, _ := at.(map[string]any)
			v, ok := m[key]
			if !ok {
				return fmt.Errorf("the chart has no value %s", path)
			}
			at = v
		}
	}
	return nil
}
