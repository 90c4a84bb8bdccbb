// SPDX-License-Identifier: Apache-2.0

package ibsim_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/machines/ibsim"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// TestFabric: the tools report the configured fabric with the subnet manager's LIDs, and the effects of console
// commands; Close leaves nothing behind.
func TestFabric(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // without ibsim, a tool tries to connect for ever
	defer cancel()
	net := ibsim.FatTree(2, 3, 2)
	host := net.Find("host0 mlx5_0")
	f, err := ibsim.Start(ctx, ibsim.Options{Net: net.String(), Host: net.Nodes[host].ID()})
	if err != nil {
		t.Fatal(err)
	}
	run := func(tool string, args ...string) string {
		out, err := child.Command(ctx, filepath.Join(f.Tools, tool), args...).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", tool, err, out)
		}
		return string(out)
	}
	ports := run("ibnetdiscover", "-t", "10000", "-p")
	if got, want := strings.Count(ports, " - "), 2*len(net.Links); got != 2*want { // once before the peer, once between the names
		t.Errorf("%d ends of links, want %d:\n%s", got/2, want, ports)
	}
	for line := range strings.Lines(ports) {
		if fields := strings.Fields(line); fields[1] == "0" {
			t.Errorf("no LID: %s", line)
		}
	}
	link := net.Links[0].A
	if reply, err := f.Console("Unlink " + net.Port(link)); err != nil {
		t.Errorf("%s: %v", reply, err)
	}
	if got, want := strings.Count(run("ibnetdiscover", "-t", "10000", "-p"), " - "), 4*(len(net.Links)-1); got != want {
		t.Errorf("after a link was cut: %d, want %d", got, want)
	}
	if _, err := f.Console(`Unlink "nowhere"`); err == nil {
		t.Error("no complaint of a node that there is not")
	}
	if _, err := f.Console("Nonsense"); err == nil {
		t.Error("no complaint of nonsense")
	}
	// A killed tool occupies a slot until Reap. It is killed after it is attached: a connection from an ended process
	// ends ibsim.
	for range 12 {
		cmd := child.Command(ctx, filepath.Join(f.Tools, "ibping"), "-S")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for client := fmt.Sprintf(": pid %d ", cmd.Process.Pid); ; time.Sleep(10 * time.Millisecond) {
			attached, err := f.Console("Attached")
			if err != nil || ctx.Err() != nil {
				t.Fatalf("ibping does not attach: %v, %v: %s", err, ctx.Err(), attached)
			}
			if strings.Contains(attached, client) {
				break
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if err := f.Reap(); err != nil {
			t.Error(err)
		}
	}
	run("sminfo")
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(f.Tools); err == nil {
		t.Error("its files are still there")
	}
	if _, err := f.Console("Verbose"); err == nil {
		t.Error("it is still there")
	}
}
