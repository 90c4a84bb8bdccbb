// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestIdleGPUs: documents and dashboards report an allocated GPU as idle only if its processes are counted. Otherwise
// all GPUs would look idle in a foreign PID namespace, during a release, or on a stuck GPU.
func TestIdleGPUs(t *testing.T) {
	query := regexp.MustCompile("container_gpu_allocated[^`\n]*container_gpu_processes")
	guarded := regexp.MustCompile(`container_gpu_allocated(\{[^}]*\})? and on \([a-z_, ]+\) container_gpu_processes`)
	queries := 0
	for _, dir := range []string{"../../../README.md", "../../../docs", "../../../deploy"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if ext := filepath.Ext(path); err != nil || ext != ".md" && ext != ".json" {
				return err
			}
			text, err := os.ReadFile(path)
			for _, q := range query.FindAllString(string(text), -1) {
				queries++
				if !guarded.MatchString(q) {
					t.Errorf("%s: idle also where processes are not collected: %s", path, q)
				}
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if queries < 7 { // four documents, three panels
		t.Errorf("%d queries for idle GPUs", queries)
	}
}
