// SPDX-License-Identifier: Apache-2.0

package kernellog

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

var update = flag.Bool("update", false, "rewrite the tables of docs/faults.md")

const docsPage = "../../../docs/faults.md"

// TestForms: its own row is the first that reads the example of a form, and its process is found.
func TestForms(t *testing.T) {
	for driver, rows := range messages {
		for i, m := range rows {
			first := slices.IndexFunc(rows, func(other message) bool { return other.text().MatchString(m.example) })
			if first < 0 || rows[first].code != m.code || rows[first].kind != m.kind || rows[first].awaits != m.awaits {
				t.Errorf("%s: %q of row %d is read by row %d", driver, m.example, i, first)
				continue
			}
			_, pid := m.processIn(m.example)
			if want := strings.Contains(m.example, "4711"); want != (pid == 4711) {
				t.Errorf("%s: %q: process %d", driver, m.example, pid)
			}
			if m.kernels == "" {
				t.Errorf("%s: %q has no kernels", driver, m.example)
			}
		}
	}
}

// TestUnread: no form reads the unread texts, even if the kernel added the device to the record.
func TestUnread(t *testing.T) {
	for _, u := range unreadTexts {
		for _, b := range []string{"3,100,5000000,-;" + u.text + "\n", deviceRecord(u.text, "0000:03:00.0"), nvidiaRecord(u.text)} {
			if got := meaning(b); got != "" {
				t.Errorf("%s: %s", u.text, got)
			}
		}
	}
}

// TestFaultsPage: the tables of docs/faults.md match the forms.
func TestFaultsPage(t *testing.T) {
	text, err := os.ReadFile(docsPage)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for name, table := range map[string]string{"forms": formTable(), "unread": unreadTable()} {
		begin := "<!-- " + name + " -->\n"
		before, rest, ok := strings.Cut(want, begin)
		_, after, closed := strings.Cut(rest, "<!-- end -->\n")
		if !ok || !closed {
			t.Fatalf("%s has no place for the table %s", docsPage, name)
		}
		want = before + begin + "\n" + table + "\n<!-- end -->\n" + after
	}
	if *update {
		if err := os.WriteFile(docsPage, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := gocmp.Diff(want, string(text)); d != "" {
		t.Errorf("go test ./pkg/source/kernellog -run TestFaultsPage -update:\n%s", d)
	}
}

// formTable lists one text of each code.
func formTable() string {
	var b strings.Builder
	for _, driver := range slices.Sorted(maps.Keys(messages)) {
		own := slices.DeleteFunc(slices.Clone(messages[driver]), func(m message) bool {
			return slices.ContainsFunc(pcieMessages, func(p message) bool { return p.code == m.code })
		})
		if len(own) > 0 {
			fmt.Fprintf(&b, "`%s`:\n\n", own[0].driver)
			writeForms(&b, own)
			b.WriteString("\n")
		}
	}
	b.WriteString("Each of these drivers, and `nvidia`:\n\n")
	writeForms(&b, pcieMessages)
	return b.String()
}

func writeForms(b *strings.Builder, rows []message) {
	for i, m := range rows {
		sameCode := func(other message) bool { return other.code == m.code && other.kind == m.kind }
		if m.kind == culprit || slices.ContainsFunc(rows[i+1:], sameCode) {
			continue
		}
		end := ""
		if m.kind == recovery {
			end = "end of "
		}
		fmt.Fprintf(b, "- %s`%s`: `%s`\n", end, m.code, m.example)
	}
}

// unreadTable lists the drivers of the unread texts by reason.
func unreadTable() string {
	drivers := map[string][]string{}
	var reasons []string
	for _, u := range unreadTexts {
		if drivers[u.why] == nil {
			reasons = append(reasons, u.why)
		}
		if driver := "`" + u.driver + "`"; !slices.Contains(drivers[u.why], driver) {
			drivers[u.why] = append(drivers[u.why], driver)
		}
	}
	var b strings.Builder
	for _, why := range reasons {
		fmt.Fprintf(&b, "- %s: %s\n", strings.Join(drivers[why], ", "), why)
	}
	return b.String()
}

// TestForgedOwner: a process chooses its name, with up to 15 bytes, but not another owner in any form.
func TestForgedOwner(t *testing.T) {
	const victim, culprit = 1, 4711
	for _, comm := range []string{
		"x pid 1 thread ", " pid 1 thread x", "pid 1 thread x ", "pid 1", ` pid 1 thread\x0a`, `a\x0a pid 1 `, `\x0a pid 1 threa`, `\x5cx0a pid 1 t`,
		"x [1]", "[1]", "x [1] in y [1]", "in a [1]", ") pid 1", "for process a", "Process a pid 1", "in process a p",
	} {
		for driver, rows := range messages {
			for _, m := range rows {
				text := strings.ReplaceAll(m.example, "python", comm)
				b := deviceRecord(driver+" 0000:03:00.0: "+text, "0000:03:00.0")
				r, _ := parseRecord([]byte(b))
				if l, ok := parse(&r); ok && l.pid != 0 && l.pid != culprit {
					t.Errorf("%s: the owner is %d", text, l.pid)
				}
			}
		}
	}
}

// TestOneHealthEvent: Linux 6.1 and later print two texts of the table about a health event of mlx5, earlier kernels
// one.
func TestOneHealthEvent(t *testing.T) {
	n := newNode(t)
	n.start()
	for _, text := range []string{"Health issue observed, firmware internal error, severity(3) ERROR:", "synd 0x1: firmware internal error"} {
		n.kernel("mlx5_core 0000:03:00.0: print_health_info:425:(pid 0): " + text)
	}
	n.kernel("mlx5_core 0000:03:00.0: poll_health:800:(pid 0): Fatal error 1 detected")
	count := func(s *model.Snapshot, code string) uint64 {
		for _, f := range s.FaultTotals {
			if f.Code == code {
				return f.Count
			}
		}
		return 0
	}
	s := n.counted("fatal")
	if got := count(&s, "health"); got != 1 {
		t.Errorf("Linux 6.1: %d", got)
	}
	old := newNode(t)
	old.start()
	old.kernel("mlx5_core 0000:03:00.0: print_health_info:401:(pid 0): synd 0x1: firmware internal error")
	s = old.counted("health")
	if got := count(&s, "health"); got != 1 {
		t.Errorf("Linux 5.10: %d", got)
	}
}

// TestPageFaultOwner: each form of an amdgpu page fault belongs to the process that the driver names, before, between
// and after the changes of its text.
func TestPageFaultOwner(t *testing.T) {
	const device = "amdgpu 0000:03:00.0: amdgpu: "
	for name, records := range map[string][]string{
		"gfx10 before 6.9": {"[gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32770, for process python pid 70 thread python pid 71)"},
		"gfx9 before 6.9":  {"[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32770, for process python pid 70 thread python pid 71)"},
		"gfx8 before 6.9":  {"GPU fault detected: 146 0x0000480c for process python pid 70 thread python pid 71"},
		"gfx10 of 6.12":    {"[gfxhub] page fault (src_id:0 ring:24 vmid:3 pasid:32771)", " in process python pid 70 thread python pid 71"},
		"gfx11 of 6.12":    {"[mmhub] page fault (src_id:0 ring:24 vmid:3 pasid:32771)", " in process python pid 70 thread python pid 71)"},
		"gfx9 of 6.12":     {"[gfxhub0] retry page fault (src_id:0 ring:24 vmid:8 pasid:32771)", " for process python pid 70 thread python pid 71)"},
		"gfx12 of 7.2":     {"[gfxhub] page fault (src_id:0 ring:173 vmid:8 pasid:32791)", " Process python pid 70 thread python pid 71"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.start()
			n.process(70, "python", 0, 0)
			for _, text := range records {
				n.kernel(device + text)
			}
			n.kernel(device + "  in page starting at address 0x00007f2a00000000 from client 10")
			s := n.counted("page_fault")
			if len(s.Faults) != 1 || s.Faults[0].Cgroup != 70 || s.Faults[0].Value != 1 || len(s.FaultTotals) != 1 || s.FaultTotals[0].Count != 1 {
				t.Errorf("%+v, %+v", s.Faults, s.FaultTotals)
			}
		})
	}
}
