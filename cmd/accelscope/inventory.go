// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// inventoryCmd has the commands for the inventory of a running sensor.
type inventoryCmd struct {
	Accept acceptCmd `cmd:"" help:"Accept missing devices, and GPU links that are down."`
}

type acceptCmd struct {
	controlFlags
	Devices []string `arg:"" optional:"" name:"device" help:"ID, name, PCI address or serial number. Default: all."`
}

// acceptPath is the request of the control socket, with id=… for each device. It answers with an acceptance.
const acceptPath = "/inventory/accept"

type acceptance struct {
	Accepted []string `json:"accepted"`
}

// accepter is an inventory.
type accepter interface {
	Accept(now time.Time, names []string) []string
}

func (c *acceptCmd) run(ctx context.Context, stdout io.Writer) error {
	answer, err := control[acceptance](ctx, http.MethodPost, c.Socket, acceptPath, url.Values{"id": c.Devices})
	if err != nil {
		return err
	}
	for _, text := range answer.Accepted {
		fmt.Fprintln(stdout, "accepted:", printable(text))
	}
	if len(answer.Accepted) == 0 {
		if len(c.Devices) > 0 {
			return fmt.Errorf("nothing is missing of %s", strings.Join(c.Devices, ", "))
		}
		fmt.Fprintln(stdout, "nothing is missing")
	}
	return nil
}

func accepting(had accepter) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(acceptance{notNil(had.Accept(time.Now(), r.URL.Query()["id"]))}) // the client may have ended
	}
}

// missing adds a row for each device that is missing.
func (r *report) missing(list []model.MissingDevice) {
	for _, m := range list {
		if m.Excused {
			continue
		}
		area, id, look := "device", m.ID, "look for its PCI address in lspci and dmesg"
		switch m.Kind {
		case model.KindGPU:
			area = "gpu"
		case model.KindModule:
			id, look = strconv.Quote(m.Serial), fmt.Sprintf("look at the cage of %s, port %d, and at ethtool -m", m.Name, m.Port)
		}
		reason := fmt.Sprintf("missing: %s at %s was last listed at %s", m.ID, m.Slot, m.Seen.Format(time.DateTime))
		if m.Seen.IsZero() {
			reason = fmt.Sprintf("missing: %s has no driver, beside equal GPUs that have one", m.Slot)
		}
		r.add(area, cmp.Or(m.Name, m.ID), model.StateFailed, reason,
			look+"; if it was removed on purpose: accelscope inventory accept "+id)
	}
}
