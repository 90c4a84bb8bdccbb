// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/client"
	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/format"
)

// peersRun prints the connected queue pairs that the sensor lists.
func peersRun(ctx context.Context, c *config.PeersCommand, stdout io.Writer) error {
	body, err := askPeers(ctx, c)
	if err != nil {
		return err
	}
	if c.JSON {
		_, err = fmt.Fprintln(stdout, strings.TrimSpace(string(body)))
		return err
	}
	var peers []api.Peer
	if err := json.Unmarshal(body, &peers); err != nil {
		return fmt.Errorf("%w: %w", client.ErrNoSensor, err)
	}
	if len(peers) == 0 {
		text := "no queue pair is connected"
		if c.Stalled {
			text = "no queue pair is stalled"
		}
		_, err = fmt.Fprintln(stdout, text)
		return err
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	rows := groupRows
	if c.QPs {
		rows = queueRows
	}
	for _, row := range rows(peers) {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	return table.Flush()
}

// askPeers requests the peers from the sensor and returns the body of the answer.
func askPeers(ctx context.Context, c *config.PeersCommand) ([]byte, error) {
	filter := url.Values{}
	if c.Workload != "" {
		filter.Set("workload", c.Workload)
	}
	if c.Device != "" {
		filter.Set("device", c.Device)
	}
	if c.Stalled {
		filter.Set("stalled", "true")
	}
	sensor, err := client.New(c.URL)
	if err != nil {
		return nil, err
	}
	defer sensor.Close()
	return sensor.Get(ctx, api.PeersPath, filter)
}

// groupRows returns one row for all queue pairs of a workload that are connected
// to one remote port. The sensor has sorted peers by workload.
func groupRows(peers []api.Peer) [][]string {
	type group struct {
		workload, containerID, device, remote string
		port                                  uint32
	}
	states, total := map[group]map[string]int{}, map[group]int{}
	var order []group
	for _, p := range peers {
		g := group{p.Workload, p.ContainerID, p.Device, remote(p), p.Port}
		if states[g] == nil {
			states[g] = map[string]int{}
			order = append(order, g)
		}
		states[g][cmp.Or(p.State, "-")]++
		total[g]++
	}
	rows := [][]string{{"WORKLOAD", "DEVICE", "PORT", "CONNECTED TO", "QPS", "STATE"}}
	for _, g := range order {
		rows = append(rows, []string{
			owner(g.workload), format.Line(g.device), fmt.Sprint(g.port), g.remote, fmt.Sprint(total[g]), summary(states[g]),
		})
	}
	return rows
}

// queueRows returns one row per queue pair.
func queueRows(peers []api.Peer) [][]string {
	rows := [][]string{{"WORKLOAD", "DEVICE", "PORT", "QPN", "TYPE", "STATE", "CONNECTED TO", "REMOTE QPN", "STALLED"}}
	for _, p := range peers {
		rows = append(rows, []string{
			owner(p.Workload), format.Line(p.Device), fmt.Sprint(p.Port), fmt.Sprint(p.QPN),
			format.Line(p.Type), format.Line(cmp.Or(p.State, "-")), remote(p), remoteQPN(p), stalled(p),
		})
	}
	return rows
}

// remote returns the GID of the remote port, or its LID in a subnet without GIDs.
func remote(p api.Peer) string {
	switch {
	case p.RemoteGID != "":
		return format.Line(p.RemoteGID)
	case p.RemoteLID != 0:
		return fmt.Sprint("LID ", p.RemoteLID)
	case p.RemoteAddress != "":
		return format.Line(p.RemoteAddress)
	}
	return "(not known)" // connected before the sensor started
}

// remoteQPN returns the number of the remote queue pair, which is not known of kernel users. No connection has number 0.
func remoteQPN(p api.Peer) string {
	if p.RemoteQPN == 0 {
		return "-"
	}
	return fmt.Sprint(p.RemoteQPN)
}

// stalled returns how long the queue pair waits for a completion.
func stalled(p api.Peer) string {
	if p.StalledSeconds == 0 {
		return "-"
	}
	return time.Duration(p.StalledSeconds * float64(time.Second)).Round(time.Second).String()
}

// summary returns the state that all queue pairs have, or the number in each state, most first.
func summary(states map[string]int) string {
	names := slices.SortedFunc(maps.Keys(states), func(a, b string) int {
		return cmp.Or(cmp.Compare(states[b], states[a]), cmp.Compare(a, b))
	})
	if len(names) == 1 {
		return format.Line(names[0])
	}
	for i, name := range names {
		names[i] = fmt.Sprint(states[name], " ", format.Line(name))
	}
	return strings.Join(names, ", ")
}

func owner(workload string) string {
	if workload == "" {
		return format.NoOwner
	}
	return format.Line(workload)
}
