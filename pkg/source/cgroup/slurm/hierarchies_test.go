// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestFollowed: on cgroup v1 the hierarchy with the jobs of Slurm is followed.
func TestFollowed(t *testing.T) {
	const job = "/slurm/uid_1000/job_"
	for name, c := range map[string]struct {
		files []string
		want  string
	}{
		"no Slurm":              {nil, ""},
		"all in memory":         {[]string{"memory" + job + "1/x", "devices" + job + "1/x", "cpuset" + job + "1/x"}, "memory"},
		"some in memory":        {[]string{"memory" + job + "1/x", "devices" + job + "1/x", "devices" + job + "2/x", "freezer" + job + "2/x"}, "devices"},
		"in cpuset only":        {[]string{"cpuset/slurm_node17/uid_0/job_3/x"}, "cpuset"},
		"no job yet":            {[]string{"freezer/slurm/x", "devices/slurm/x"}, "devices"},
		"no job yet, in memory": {[]string{"freezer/slurm/x", "memory/slurm/x"}, "memory"},
		"another directory":     {[]string{"freezer/slurmy/x"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			files, all := map[string]string{}, []Hierarchy{}
			for _, c := range []string{"memory", "devices", "cpuset", "freezer"} {
				files[c+"/release_agent"] = ""
				all = append(all, Hierarchy{c, filepath.Join(root, c)})
			}
			for _, f := range c.files {
				files[f] = ""
			}
			write(t, root, files)
			if h := Followed(all); h.Controller != c.want {
				t.Errorf("%+v, want %s", h, c.want)
			}
		})
	}
}

// TestJobsElsewhere: a state names the jobs in a hierarchy that is not followed, and says that a hierarchy other than
// memory is followed.
func TestJobsElsewhere(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{"memory/x": "", "devices/slurm/x": ""})
	e := Elsewhere{
		Followed: Hierarchy{"devices", root + "/devices"},
		Others:   func() []Hierarchy { return []Hierarchy{{"memory", root + "/memory"}} },
	}
	now := time.Unix(1000, 0)
	states := func(after time.Duration) []model.DeviceState {
		now = now.Add(after)
		return e.States("cgroup", now)
	}
	if got := states(checkInterval); len(got) != 1 || got[0].State != model.StateOK || !strings.Contains(got[0].Reason, "devices is followed in place of memory") {
		t.Errorf("%+v", got)
	}
	// Slurm makes and removes the cgroups of a job in one hierarchy after the other.
	write(t, root, map[string]string{"memory/slurm/uid_1/job_7/x": "", "memory/slurm/uid_1/job_8/x": ""})
	if got := states(checkInterval); len(got) != 1 {
		t.Errorf("jobs that are being made: %+v", got)
	}
	write(t, root, map[string]string{"devices/slurm/uid_1/job_7/x": "", "devices/slurm/uid_1/job_9/x": ""})
	if got := states(recheckJobs); len(got) != 2 || got[1].State != model.StateFailed || !strings.HasPrefix(got[1].Reason, "job_8: ") {
		t.Errorf("a job elsewhere: %+v", got)
	}
	if err := os.RemoveAll(root + "/devices/slurm/uid_1/job_7"); err != nil {
		t.Fatal(err)
	}
	if got := states(checkInterval); len(got) != 2 || !strings.HasPrefix(got[1].Reason, "job_8: ") {
		t.Errorf("a job that is being removed: %+v", got)
	}
	for _, job := range []string{"7", "8"} {
		if err := os.RemoveAll(root + "/memory/slurm/uid_1/job_" + job); err != nil {
			t.Fatal(err)
		}
	}
	if got := states(checkInterval); len(got) != 1 {
		t.Errorf("no job elsewhere: %+v", got)
	}
}
