// SPDX-License-Identifier: Apache-2.0

// Package slurm tests slurm-health with FAKE commands of Slurm, whose output has the form of Slurm 22.05. Scenario health of TestSlurm in
// tests/suites/e2e runs it with a real Slurm.
package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// The fakes keep the state and reason of each node in DIR/nodes. The check prints DIR/line and exits with DIR/status.
var fakes = map[string]string{
	"scontrol": `
		put() { printf '%s|%s\n' "$1" "$2" >DIR/new.$$ && mv DIR/new.$$ "DIR/nodes/$node"; }
		case "$*" in
		"-o show node "*)
			IFS='|' read -r state reason <"DIR/nodes/$4" || exit 1
			echo "NodeName=$4 Gres=(null) State=$state ThreadsPerCore=1${reason:+ Reason=$reason [root@2026-11-30T07:53:11]}" ;;
		"update NodeName="*)
			node=${2#NodeName=}
			case "$#/$3/$4" in
			3/State=RESUME/) put IDLE "" ;;
			4/State=DRAIN/Reason=?*) put IDLE+DRAIN "${4#Reason=}" ;;
			*) exit 1 ;;
			esac ;;
		*) exit 1 ;;
		esac`,
	// It lists each node for two partitions. DIR/answer.N is the answer of call N. With DIR/together no node gets its first answer before
	// that many nodes have asked.
	"sinfo": `
		[ "$*" = "-h -a -N -R -o %N|%E" ] && [ ! -e DIR/no-sinfo ] || exit 1
		n=$(($(cat DIR/calls 2>/dev/null || echo 0) + 1)); echo $n >DIR/calls
		[ ! -e DIR/answer.$n ] || exec cat DIR/answer.$n
		answer=$(cd DIR/nodes && grep -E '^[^|]*(DRAIN|DOWN)' * /dev/null | sed 's/:[^|]*|/|/')
		if [ -e DIR/together ] && [ ! -e "DIR/asked/$SLURMD_NODENAME" ]; then
			: >"DIR/asked/$SLURMD_NODENAME"
			while [ "$(ls DIR/asked | wc -l)" -lt "$(cat DIR/together)" ]; do sleep 0.02; done
		fi
		printf '%s\n%s\n' "$answer" "$answer"`,
	"logger": `[ ! -e DIR/no-logger ] || exit 127
		[ "$1 $2 $3 $4 $5" = "-t accelscope-slurm-health -p daemon.notice --" ] && echo "$6" >>DIR/log`,
	"check": `[ ! -e DIR/hang ] || sleep 100
		cat DIR/line; exit $(cat DIR/status)`,
}

// cluster is a directory with the fakes and their state.
type cluster struct {
	t     *testing.T
	dir   string
	shell []string
}

func newCluster(t *testing.T, shell, settings string) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir(), shell: strings.Fields(shell)}
	for name, text := range fakes {
		c.write("bin/"+name, "#!/bin/sh\n"+strings.ReplaceAll(text, "DIR", c.dir)+"\n")
	}
	c.write("settings", "check='"+c.dir+"/bin/check'\nrun_dir="+c.dir+"\n"+settings+"\n")
	c.write("asked/.keep", "")
	return c
}

func (c *cluster) write(name, text string) {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) read(name string) string {
	text, _ := os.ReadFile(filepath.Join(c.dir, name))
	return strings.TrimSuffix(string(text), "\n")
}

// answers sets the result of the check.
func (c *cluster) answers(status int, line string) {
	c.t.Helper()
	c.write("status", fmt.Sprint(status))
	c.write("line", line+"\n")
}

// run runs the script as slurmd of a node does: slurmd passes only the name of the node.
func (c *cluster) run(node string) {
	script, err := filepath.Abs("slurm-health")
	if err != nil {
		c.t.Error(err)
	}
	command := child.Command(c.t.Context(), c.shell[0], append(c.shell[1:], script)...)
	command.Env = []string{"SLURMD_NODENAME=" + node, "PATH=" + c.dir + "/bin:/usr/bin:/bin", "ACCELSCOPE_SLURM_HEALTH=" + c.dir + "/settings"}
	if out, err := command.CombinedOutput(); err != nil {
		c.t.Errorf("%v: %s", err, out)
	}
}

// inShells runs a test with the shells of Debian and of RHEL.
func inShells(t *testing.T, test func(t *testing.T, shell string)) {
	for _, shell := range []string{"dash", "bash --posix"} {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			test(t, shell)
		})
	}
}

const (
	lost   = "GPULost GPU 3: XID 79"
	ours   = "IDLE+DRAIN|accelscope: GPULost GPU 3: XID 79"
	theirs = "IDLE+DRAIN|bad fan, accelscope: no"
)

// TestDrain: what one run does to node n1.
func TestDrain(t *testing.T) {
	three := []string{ours, "DOWN+DRAIN|accelscope: other", ours}
	for _, tt := range []struct {
		name, settings, node string
		status               int
		line, want, log      string
		others               []string // nodes
		file                 string   // that a fake looks for
	}{
		{"problem", "", "IDLE|", 1, lost, ours, "n1: drained: accelscope: " + lost, nil, ""},
		{"first verdict", "", "MIXED|", 1, lost + "\nRDMAPortDown mlx5_0/1: DOWN\n7 more", ours, "drained", nil, ""},
		{"healthy", "", "IDLE|", 0, "no verdict of severity critical: 8 GPUs", "IDLE|", "", nil, ""},
		{"unknown", "", "IDLE|", 2, "unknown: no answer within 4s", "IDLE|", "n1: the check has status 2: unknown: no answer within 4s", nil, ""},
		{"wrong usage", "", "IDLE|", 1, "", "IDLE|", "status 1", nil, ""},
		{"no tool", "check=/nonexistent", "IDLE|", 0, "", "IDLE|", "status 127", nil, ""},
		{"ours stays", "", ours, 0, "no verdict", ours, "", nil, ""},
		{"ours while unknown", "resume_after=1", ours, 2, "unknown: stuck", ours, "status 2", nil, ""},
		{"reason stays", "", ours, 1, "RDMAPortDown mlx5_0/1: DOWN", ours, "", nil, ""},
		{"another's drain", "", theirs, 1, lost, theirs, "not drained, as the node has another reason: accelscope: " + lost, nil, ""},
		{"another's drain, healthy", "resume_after=1", theirs, 0, "no verdict", theirs, "", nil, ""},
		{"a note", "", "IDLE|ticket 7", 1, lost, "IDLE|ticket 7", "another reason", nil, ""},
		{"drained without a reason", "", "IDLE+DRAIN|", 1, lost, "IDLE+DRAIN|", "another reason", nil, ""},
		{"down", "", "DOWN+NOT_RESPONDING|", 1, lost, "DOWN+NOT_RESPONDING|", "another reason", nil, ""},
		{"down after our drain", "resume_after=1", "DOWN+DRAIN|accelscope: x", 0, "no verdict", "DOWN+DRAIN|accelscope: x", "", nil, ""},
		{"limit", "", "IDLE|", 1, lost, "IDLE|", "not drained, as 3 nodes are", three, ""},
		{"below the limit", "", "IDLE|", 1, lost, ours, "drained", three[1:], ""},
		{"others' drains do not count", "", "IDLE|", 1, lost, ours, "drained", []string{theirs, theirs, theirs}, ""},
		{"higher limit", "max_nodes=4", "IDLE|", 1, lost, ours, "drained", three, ""},
		{"limit 0", "max_nodes=0", "IDLE|", 1, lost, "IDLE|", "not drained, as 0 nodes are", nil, ""},
		{"limit is no number", "max_nodes=many", "IDLE|", 1, lost, "IDLE|", "not drained", nil, ""},
		{"sinfo fails", "", "IDLE|", 1, lost, "IDLE|", "or sinfo failed", nil, "no-sinfo"},
		{"dry run", "dry_run=yes", "IDLE|", 1, lost, "IDLE|", "n1: dry run: drained: accelscope: " + lost, nil, ""},
		{"dry run without syslog", "dry_run=yes", "IDLE|", 1, lost, "IDLE|", "", nil, "no-logger"},
		{"dry run, healthy", "dry_run=yes resume_after=1", ours, 0, "no verdict", ours, "dry run: resumed after 1 healthy checks", nil, ""},
		{"broken settings", "if", "IDLE|", 1, lost, "IDLE|", "", nil, ""},
		{"slurmctld is down", "", "", 1, lost, "", "no answer of slurmctld", nil, ""},
		{
			"hostile text", "", "IDLE|", 1, "GPULost pod `id` $(touch x) \"'\\ State=DOWN|*? \x1b[2J\xff\u00e9\tNode=1\rx\nReason=accelscope: y",
			"IDLE+DRAIN|accelscope: GPULost pod _id_ _(touch x) ___ State_DOWN___ __2J____Node_1_x", "drained", nil, "",
		},
		{"long text", "", "IDLE|", 1, strings.Repeat("x", 5000), "IDLE+DRAIN|accelscope: " + strings.Repeat("x", 200), "drained", nil, ""},
		{"option", "", "IDLE|", 1, "-n State=DOWN", "IDLE+DRAIN|accelscope: -n State_DOWN", "drained", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inShells(t, func(t *testing.T, shell string) {
				c := newCluster(t, shell, tt.settings)
				if tt.node != "" {
					c.write("nodes/n1", tt.node+"\n")
				}
				for i, other := range tt.others {
					c.write(fmt.Sprint("nodes/other", i), other+"\n")
				}
				if tt.file != "" {
					c.write(tt.file, "")
				}
				c.answers(tt.status, tt.line)
				c.run("n1")
				if got := c.read("nodes/n1"); got != tt.want {
					t.Errorf("the node is %q, want %q", got, tt.want)
				}
				if log := c.read("log"); !strings.Contains(log, tt.log) || (log == "") != (tt.log == "") {
					t.Errorf("the log is %q, want %q", log, tt.log)
				}
			})
		})
	}
}

// TestHang: a check that does not return ends in time, and changes nothing.
func TestHang(t *testing.T) {
	inShells(t, func(t *testing.T, shell string) {
		c := newCluster(t, shell, "")
		c.write("nodes/n1", "IDLE|\n")
		c.write("hang", "")
		begin := time.Now()
		c.run("n1")
		if took := time.Since(begin); took > time.Minute || c.read("nodes/n1") != "IDLE|" || !strings.Contains(c.read("log"), "status 124") {
			t.Errorf("after %v the node is %q: %s", took, c.read("nodes/n1"), c.read("log"))
		}
	})
}

// TestResume: only a number of healthy checks in a row resumes the node.
func TestResume(t *testing.T) {
	inShells(t, func(t *testing.T, shell string) {
		c := newCluster(t, shell, "resume_after=3")
		c.write("nodes/n1", ours+"\n")
		for i, status := range []int{0, 0, 2, 0, 0, 1, 0, 0} {
			c.answers(status, lost)
			c.run("n1")
			if got := c.read("nodes/n1"); got != ours {
				t.Fatalf("after check %d the node is %q", i, got)
			}
		}
		c.write("nodes/n1", theirs+"\n") // the count ends with our drain
		c.run("n1")
		c.write("nodes/n1", ours+"\n")
		for _, want := range []string{ours, ours, "IDLE|"} {
			c.run("n1")
			if got := c.read("nodes/n1"); got != want {
				t.Errorf("the node is %q, want %q: %s", got, want, c.read("log"))
			}
		}
	})
}

// TestLookAgain: what a node with a problem sees after it has drained itself decides whether it stays drained.
func TestLookAgain(t *testing.T) {
	list := func(names ...string) (text string) {
		for _, name := range names {
			text += strings.Repeat(name+"|accelscope: "+lost+"\n", 2)
		}
		return text + "n0|bad fan\n"
	}
	for _, tt := range []struct {
		name  string
		looks []string // the last goes on
		want  string
	}{
		{"alone", []string{list("n5")}, ours},
		{"full", []string{list("n4", "n5")}, ours},
		{"before those that leave", []string{list("n5", "n7", "n9"), list("n5", "n7")}, ours},
		{"before those that stay", []string{list("n5", "n7", "n9")}, "IDLE|"},
		{"after others", []string{list("n10", "n4", "n5"), list("n4", "n5")}, "IDLE|"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inShells(t, func(t *testing.T, shell string) {
				c := newCluster(t, shell, "max_nodes=2")
				c.write("nodes/n5", "IDLE|\n")
				c.answers(1, lost)
				c.write("answer.1", list())
				for i := range 3 {
					c.write(fmt.Sprint("answer.", i+2), tt.looks[min(i, len(tt.looks)-1)])
				}
				c.run("n5")
				if got := c.read("nodes/n5"); got != tt.want {
					t.Errorf("the node is %q, want %q: %s", got, tt.want, c.read("log"))
				}
			})
		})
	}
}

// TestTogether: all nodes have a problem at once, and each of them sees no drained node before it drains itself.
func TestTogether(t *testing.T) {
	const nodes, limit = 8, 3
	c := newCluster(t, "dash", "")
	c.answers(1, lost)
	c.write("together", fmt.Sprint(nodes))
	for i := range nodes {
		c.write(fmt.Sprint("nodes/n", i), "IDLE|\n")
	}
	var all sync.WaitGroup
	for i := range nodes {
		all.Go(func() { c.run(fmt.Sprint("n", i)) })
	}
	all.Wait()
	drained := 0
	for i := range nodes {
		if c.read(fmt.Sprint("nodes/n", i)) != "IDLE|" {
			drained++
		}
	}
	t.Logf("%d nodes stay drained", drained) // on a slow machine maybe fewer than the limit
	if log := c.read("log"); drained > limit || strings.Count(log, " drained: ") < nodes {
		t.Errorf("%d nodes are drained, want at most %d: %s", drained, limit, log)
	}
}
