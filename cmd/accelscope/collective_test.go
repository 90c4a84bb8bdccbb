// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/tests/fakes/collective"
	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// testCollectives runs the program with real processes in the cgroups of two containers, which are the ranks of a communicator of a FAKE
// library. The master of a terminal stands in for the device node of a GPU (asGPU).
func testCollectives(t *testing.T, binary string) {
	t.Helper()
	root(t)
	built := collective.Build(t, t.TempDir())
	gpu, err := os.Open("/dev/ptmx")
	if err != nil {
		t.Fatal(err)
	}
	defer gpu.Close()
	var ids []string
	var ranks []*collective.Rank
	for i := range 2 {
		c := fixtures.Container{
			ID:     fmt.Sprintf("%x", sha256.Sum256([]byte{0x01, 0xf, byte(i)})),
			PodUID: fmt.Sprintf("acce15c0-00f1-4000-8000-%012d", os.Getpid()),
		}
		leaves := containerCgroups(t, c)
		cmd := child.Command(context.Background(), built.Rank)
		cmd.ExtraFiles = []*os.File{gpu}
		r := collective.Start(t, cmd)
		for _, leaf := range leaves {
			if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), fmt.Append(nil, r.Process.Pid), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		r.OK("load %s", built.NCCL)
		ids, ranks = append(ids, c.ID), append(ranks, r)
	}
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("key of this test"), 0o600); err != nil {
		t.Fatal(err)
	}
	url, stop := start(t, "unshare", asGPU(t, binary,
		"--no-collector.rdma", "--no-collector.probe", "--no-collector.runtime", "--no-collector.kubelet", "--no-collector.node",
		"--no-collector.container", "--no-collector.gpu", "--no-collector.kernellog",
		"--collector.collective", "--collective.key-file="+key, "--gpu.process-interval=200ms")...)
	awaitSeries(t, url, `accelscope_probe_hook_state{hook="ncclAllReduce"*state="ok"*tier="uprobe"} 1`,
		`accelscope_probe_hook_state{hook="ncclRecv"*state="ok"*tier="uprobe"} 1`,
		`accelscope_source_state{source="collective",state="ok"} 1`)
	for i, r := range ranks {
		r.OK("init rank 1 11 2 %d", i)
		r.OK("call all_reduce 1 %d 1000 7", 5+i)
	}
	const launches, bytes = "container_collective_launches_total", "container_collective_bytes_total"
	body := awaitSeries(t, url,
		launches+`{*`+ids[0]+`*library="nccl"*operation="all_reduce"*rank="0"*} 5`, bytes+`{*`+ids[0]+`*rank="0"*} 20000`,
		launches+`{*`+ids[1]+`*library="nccl"*operation="all_reduce"*rank="1"*} 6`, bytes+`{*`+ids[1]+`*rank="1"*} 24000`,
		`container_collective_communicator_info{*`+ids[1]+`*nranks="2"*rank="1"*version="2.28.9"*} 1`,
		`container_collective_coverage{*`+ids[0]+`*reason="complete"*} 1`)
	communicators := map[string]bool{}
	for line := range strings.Lines(body) {
		if rest, ok := strings.CutPrefix(line, launches+"{"); ok {
			_, label, _ := strings.Cut(rest, `communicator="`)
			label, _, _ = strings.Cut(label, `"`)
			communicators[label] = true
		}
	}
	if len(communicators) != 1 || communicators["late"] {
		t.Errorf("communicators %v, want one of both ranks", communicators)
	}
	if _, err := stop(); err != nil {
		t.Error(err)
	}
}
