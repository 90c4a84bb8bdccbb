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
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/model"
)

const peersPath = "/api/v1/peers"

// noPeers returns a function that fails with why, for a sensor that does not list peers.
func noPeers(why error) func() ([]model.Peer, error) {
	return func() ([]model.Peer, error) { return nil, why }
}

// peerShares returns the connected queue pairs with their owners. A queue pair of a cgroup
// without a name is unattributed.
func (s *sensor) peerShares() ([]attribution.PeerShare, error) {
	found, err := s.peers()
	if err != nil {
		return nil, err
	}
	refresh := s.engine.Refresh() // updates the owners of cgroups
	return attribution.Peers(found, refresh.Facts.Stalled, s.engine.Owners()), nil
}

type peersCmd struct {
	URL      string `name:"url" default:"http://127.0.0.1:9847" help:"Sensor URL, optionally http://USER:PASSWORD@HOST."`
	Workload string `name:"workload" placeholder:"NAME" help:"Show only this workload."`
	Device   string `name:"device" placeholder:"NAME" help:"Show only this HCA."`
	Stalled  bool   `name:"stalled" help:"Show only stalled queue pairs."`
	QPs      bool   `name:"qps" help:"Print one line per queue pair, with the local and the remote number."`
	JSON     bool   `name:"json" help:"Print the sensor's JSON answer."`
}

func (c *peersCmd) run(ctx context.Context, stdout io.Writer) error {
	body, err := c.ask(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		_, err = fmt.Fprintln(stdout, strings.TrimSpace(string(body)))
		return err
	}
	var peers []api.Peer
	if err := json.Unmarshal(body, &peers); err != nil {
		return fmt.Errorf("this is not the answer of a sensor: %w", err)
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

// ask requests the peers from the sensor and returns the body of the answer.
func (c *peersCmd) ask(ctx context.Context) ([]byte, error) {
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
	return askSensor(ctx, c.URL, peersPath, filter)
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
		states[g][p.State]++
		total[g]++
	}
	rows := [][]string{{"WORKLOAD", "DEVICE", "PORT", "CONNECTED TO", "QPS", "STATE"}}
	for _, g := range order {
		rows = append(rows, []string{
			owner(g.workload), printable(g.device), fmt.Sprint(g.port), g.remote, fmt.Sprint(total[g]), summary(states[g]),
		})
	}
	return rows
}

// queueRows returns one row per queue pair.
func queueRows(peers []api.Peer) [][]string {
	rows := [][]string{{"WORKLOAD", "DEVICE", "PORT", "QPN", "TYPE", "STATE", "CONNECTED TO", "REMOTE QPN", "STALLED"}}
	for _, p := range peers {
		rows = append(rows, []string{
			owner(p.Workload), printable(p.Device), fmt.Sprint(p.Port), fmt.Sprint(p.QPN),
			printable(p.Type), printable(p.State), remote(p), fmt.Sprint(p.RemoteQPN), stalled(p),
		})
	}
	return rows
}

// remote returns the GID of the remote port, or its LID in a subnet without GIDs.
func remote(p api.Peer) string {
	switch {
	case p.RemoteGID != "":
		return printable(p.RemoteGID)
	case p.RemoteLID != 0:
		return fmt.Sprint("LID ", p.RemoteLID)
	}
	return "(not known)" // connected before the sensor started
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
		return printable(names[0])
	}
	for i, name := range names {
		names[i] = fmt.Sprint(states[name], " ", printable(name))
	}
	return strings.Join(names, ", ")
}

func owner(workload string) string {
	if workload == "" {
		return format.NoOwner
	}
	return printable(workload)
}
