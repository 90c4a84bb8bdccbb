// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/client"
	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/ras"
)

// A query of RAS may end the processes of a job, mostly while communicators are made. So a job is asked that stands anyway.
const stands = time.Minute

// Crashes are known of these versions of NCCL: the code that #2346 names is in 2.30.7, and the issue is open. RCCL has the same versions.
const (
	firstRAS   = 24 // 2.24, without RAS before
	lastUnsafe = 30 // 2.30
)

// jobRanks are the ranks of a pod on this node.
type jobRanks struct {
	pids    []int
	reasons []string // why the job should not be asked
}

// jobRAS prints what NCCL's RAS says of the job of a pod on this node. It asks a process of the pod, which is in the way of the job: only
// a person may do this.
func jobRAS(ctx context.Context, c *config.RASCommand, stdout io.Writer) error {
	ranks, err := findRanks(ctx, c, time.Now())
	if err != nil {
		return err
	}
	if len(ranks.reasons) > 0 && !c.Force {
		return fmt.Errorf("not asked, as the query may end the job (--force asks): %s", strings.Join(ranks.reasons, "; "))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("no answer within %v", c.Timeout))
	defer cancel()
	err = ras.Ask(ctx, c.Procfs, c.Port, ranks.pids, stdout)
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return err
}

// findRanks asks the sensor of this node for the ranks of a pod.
func findRanks(ctx context.Context, c *config.RASCommand, now time.Time) (found jobRanks, err error) {
	sensor, err := client.New(c.URL)
	if err != nil {
		return found, err
	}
	defer sensor.Close()
	if !sensor.OnNode() {
		return found, fmt.Errorf("--url: %s is another node: run the command beside the pod", sensor)
	}
	var known api.Collectives
	missing, err := sensor.Data(ctx, api.CollectivesPath, &known)
	if err != nil {
		return found, err
	}
	if missing != "" {
		found.reasons = append(found.reasons, missing)
	}
	pods := map[string]bool{}
	for i := range known.Communicators {
		of := &known.Communicators[i]
		for k := range of.Ranks {
			if r := &of.Ranks[k]; isPod(r, c.Pod) {
				pods[r.Namespace+"/"+r.Pod] = true
				found.add(of, r, now)
			}
		}
	}
	switch {
	case len(found.pids) == 0:
		return found, fmt.Errorf("the sensor knows no rank of %s on this node", format.Line(c.Pod))
	case len(pods) > 1:
		return found, fmt.Errorf("%s is in several namespaces: give NAMESPACE/POD", format.Line(c.Pod))
	}
	return found, nil
}

// isPod reports whether a rank is of a pod or workload with this name.
func isPod(r *api.CommunicatorRank, name string) bool {
	return r.PID > 0 && r.Workload != "" && slices.Contains([]string{r.Workload, r.Namespace + "/" + r.Pod, r.Pod}, name)
}

func (j *jobRanks) add(of *api.Communicator, r *api.CommunicatorRank, now time.Time) {
	if !slices.Contains(j.pids, r.PID) {
		j.pids = append(j.pids, r.PID)
	}
	for _, reason := range []string{unsafe(of), launched(r, now)} {
		if reason != "" && !slices.Contains(j.reasons, reason) {
			j.reasons = append(j.reasons, reason)
		}
	}
}

// launched returns why a rank may not stand, or "".
func launched(r *api.CommunicatorRank, now time.Time) string {
	if r.ProcessLastLaunch == nil {
		return fmt.Sprintf("process %d was not seen to launch: it may be starting", r.PID)
	}
	if ago := now.Sub(*r.ProcessLastLaunch); ago < stands {
		return fmt.Sprintf("process %d launched %v ago", r.PID, max(0, ago).Round(time.Second))
	}
	return ""
}

// unsafe returns why the version of a library should not be asked. No version is known to be safe.
func unsafe(of *api.Communicator) string {
	var major, minor int
	if _, err := fmt.Sscanf(of.Version, "%d.%d", &major, &minor); err != nil {
		return "the version of the library is unknown"
	}
	switch {
	case major == 2 && minor < firstRAS:
		return "version " + format.Line(of.Version) + " has no RAS"
	case major == 2 && minor <= lastUnsafe:
		return "crashes are known of version " + format.Line(of.Version)
	}
	return "whether the crashes of versions before are mended in version " + format.Line(of.Version) + " is unknown"
}
