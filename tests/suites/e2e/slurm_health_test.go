// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/tests/tools/child"
)

const (
	slurmFile      = "/etc/slurm/slurm.conf"
	healthSettings = "/etc/accelscope/slurm-health"
	healthGuide    = "../../../deploy/slurm/README.md"
)

// health: slurmd runs deploy/slurm/slurm-health as its guide says, but more often. Both nodes are this guest, so both have the GPU for
// which the FAKE NVML asks for a reset.
func (l *slurm) health(t *testing.T) {
	tool := []string{os.Getenv(binaryVar) + "-tool", "check", "node", "--url=" + l.s.url}
	eventually(t, slurmLimit, func() error { // without a fault the sensor can exclude a verdict
		out, err := child.Command(t.Context(), tool[0], tool[1:]...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("check node: %w: %s", err, out)
		}
		return nil
	})
	write(t, healthSettings, fmt.Sprintf("check='%s'\nmax_nodes=1\nresume_after=2\n", strings.Join(tool, " ")))
	l.configure(t, slurmConf+l.healthLines(t))
	t.Cleanup(func() {
		if err := os.Remove(healthSettings); err != nil {
			t.Error(err)
		}
		l.configure(t, slurmConf)
	})

	const ticket = "fan is loud: ticket 7"
	sh(t, "scontrol", "update", "NodeName=guest2", "State=DRAIN", "Reason="+ticket)
	l.recover(t, 1)
	l.becomes(t, "guest drained accelscope: GPURecoveryAction ")
	l.logs(t, "guest: drained: accelscope: GPURecoveryAction ")
	l.logs(t, "guest2: not drained, as the node has another reason: accelscope: GPURecoveryAction ")
	l.becomes(t, "guest2 drained "+ticket)
	t.Logf("%s", sh(t, "sinfo", "-R", "-o", "%n %E"))

	sh(t, "scontrol", "update", "NodeName=guest2", "State=RESUME")
	l.logs(t, "guest2: not drained, as 1 nodes are, ")
	l.becomes(t, "guest2 idle none")

	sh(t, "scontrol", "update", "NodeName=guest2", "State=DRAIN", "Reason="+ticket)
	l.recover(t, 0)
	l.becomes(t, "guest idle none")
	l.logs(t, "guest: resumed after 2 healthy checks")
	l.becomes(t, "guest2 drained "+ticket)
	sh(t, "scontrol", "update", "NodeName=guest2", "State=RESUME")
	l.becomes(t, "guest2 idle none")
}

// healthLines returns the lines of the guide for slurm.conf, with the script of the tree, every 20 s.
func (l *slurm) healthLines(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(healthGuide)
	if err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs(filepath.Join(filepath.Dir(healthGuide), "slurm-health"))
	if err != nil {
		t.Fatal(err)
	}
	lines := ""
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "HealthCheck") {
			lines += line
		}
	}
	lines = strings.Replace(lines, "/usr/libexec/accelscope/slurm-health", script, 1)
	lines = strings.Replace(lines, "Interval=60", "Interval=20", 1)
	if !strings.Contains(lines, script) || !strings.Contains(lines, "Interval=20\n") {
		t.Fatalf("the guide has the lines %q", lines)
	}
	return lines
}

// configure lets all daemons of Slurm read a new slurm.conf.
func (l *slurm) configure(t *testing.T, text string) {
	t.Helper()
	write(t, slurmFile, text)
	if out, err := child.Command(context.Background(), "scontrol", "reconfigure").CombinedOutput(); err != nil {
		t.Fatalf("scontrol reconfigure: %v: %s", err, out)
	}
}

// recover sets the action that NVML asks for on GPU 0.
func (l *slurm) recover(t *testing.T, action int) {
	t.Helper()
	l.nvml.Recovery("0", action)
	if err := l.nvml.Write(); err != nil {
		t.Fatal(err)
	}
}

// becomes waits until sinfo lists a node with a state and a reason.
func (l *slurm) becomes(t *testing.T, want string) {
	t.Helper()
	eventually(t, slurmLimit, func() error {
		list := slurmSays(t, "sinfo", "-h", "-N", "-p", "pair", "-o", "%N %T %E")
		if !strings.Contains("\n"+list+"\n", "\n"+want) {
			return fmt.Errorf("the nodes are %q, want %q; %q", list, want, slurmSays(t, "journalctl", "-q", "-t", "accelscope-slurm-health", "-n", "5"))
		}
		return nil
	})
}

// logs waits until the script has written a line to syslog.
func (l *slurm) logs(t *testing.T, want string) {
	t.Helper()
	eventually(t, slurmLimit, func() error {
		if list := slurmSays(t, "journalctl", "-q", "-o", "cat", "-t", "accelscope-slurm-health"); !strings.Contains("\n"+list, "\n"+want) {
			return fmt.Errorf("the script logs %q, want %q", list, want)
		}
		return nil
	})
}
