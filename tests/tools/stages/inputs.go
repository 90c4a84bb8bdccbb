// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
)

// unread lists, by stage, the files of the project that the stage does not read: a change of such a file does not run
// the stage again. A stage without a row reads everything. A pattern is a directory (it ends with a slash), the end of a
// path (it begins with *), or a path; with ! the stage does read the file. The last pattern that matches decides.
//
// A stage that reads a file which its row leaves out is a defect: when in doubt, a file stays in. TestReads compares the
// rows with what Go's packages import and embed.
var unread = map[string][]string{
	"test-guest": slices.Concat(outside, []string{"deploy/ansible/", "!tests/suites/e2e/"}, inGuests),
	"test-image": slices.Concat(outside, []string{"deploy/ansible/", "tests/machines/", "!tests/suites/image/", "!tests/suites/compose/"}),
	"test-pages": slices.Concat(outside, []string{"deploy/", "!tests/suites/pages/"}),
	// The package has the documents. No test reads their text.
	"test-ansible": slices.Concat(outside, []string{"!tests/suites/ansible/"}),
	"test-binary": {
		"CHANGELOG.md", "CONTRIBUTING.md", "README.md", ".golangci.yml", ".ci/", "bpf/", "*_test.go", "!cmd/accelscope/", "!tests/",
		"tests/bench/", "tests/suites/",
	},
	"test-rules": {
		"*", "!README.md", "!deploy/", "!docs/", "!gen/metrics.md", "!pkg/fleet/queries.promql", "!pkg/source/nvidia/wire/xids.go",
		"!tests/suites/rules/",
	},
	"test-mutants": {"*", "!deploy/prometheus/", "!tests/suites/rules/"},
	"test-harness": {"*", "!tests/machines/", "!tests/tools/child/"},
}

// outside is unread by the stages that test the built program from outside: documents, unit tests, other suites. The
// rows add their own suite.
var outside = []string{
	"docs/", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", ".golangci.yml", ".ci/",
	"*_test.go", "!tests/", "tests/bench/", "!tests/bench/ringbuffer/", "tests/suites/",
	"tests/tools/stages/", "tests/tools/words/", "tests/tools/layers/",
}

// inGuests are the packages whose tests run in guests (binaries in tests/suites/e2e).
var inGuests = []string{
	"!pkg/hook/uprobe/", "!pkg/source/access/", "!pkg/source/cgroup/slurm/", "!pkg/source/collective/", "!pkg/source/datapath/", "!pkg/source/gpumemory/",
	"!pkg/source/library/", "!pkg/source/probe/", "!pkg/source/rdma/",
}

// everyStage is read by every stage.
var everyStage = []string{"!Makefile", "!go.mod", "!go.sum", "!tests/packages.txt"}

// artifacts is the target that builds what the stages in onArtifacts need.
const artifacts = "artifacts"

var onArtifacts = []string{"test-guest", "test-image", "test-pages", "test-ansible"}

// reads reports whether a stage reads a file of the project.
func reads(stage, path string) bool {
	read := true
	for _, pattern := range slices.Concat(unread[stage], everyStage) {
		pattern, in := strings.CutPrefix(pattern, "!")
		if matches(pattern, path) {
			read = in
		}
	}
	return read
}

func matches(pattern, path string) bool {
	if end, ok := strings.CutPrefix(pattern, "*"); ok {
		return strings.HasSuffix(path, end)
	}
	return path == pattern || strings.HasSuffix(pattern, "/") && strings.HasPrefix(path, pattern)
}
