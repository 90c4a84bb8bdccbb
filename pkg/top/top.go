// SPDX-License-Identifier: Apache-2.0

// Package top shows the users of devices in a terminal. It reads the REST API of any running sensor: workloads, devices, verdicts and
// stalled peers. Or it shows all nodes, as package fleet reads them from a Prometheus (fleet.go).
//
// read.go requests a reading; workloads.go, devices.go and stalled.go make the tables, which sheet.go sorts and filters; terminal.go and
// json.go write them.
package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/client"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/verdict"
)

// Options configure Run.
type Options struct {
	// URL of the sensor, as client.New takes it.
	URL string
	// Fleet shows all nodes instead of a sensor, unless it is nil.
	Fleet FleetReader
	// Job shows the job of this name; it needs Fleet.
	Job string
	// Interval between two readings. Rates are of the sensor's interval, of 5 s or more.
	Interval time.Duration
	// Once prints the tables as soon as they have rates, and ends.
	Once bool
	// Plain prints one table after another instead of redrawing. It is implied if Out is not a
	// terminal.
	Plain bool
	// Devices shows devices instead of workloads.
	Devices bool
	// Sort is the key of the column to sort by; empty: by name.
	Sort string
	// Filter keeps the rows with this text in the name of the workload or of the device.
	Filter string
	// JSON prints one object per interval instead of tables, all views in one.
	JSON bool
	// NoColor draws without colors. It is implied by Plain.
	NoColor bool
	Out     io.Writer
}

// maxWait is how long Once waits for rates: a sensor that nobody has read needs two refreshes, 5 s apart.
const maxWait = 12 * time.Second

// Run shows tables until ctx is done. A failed reading is reported in one line and
// retried, except with Once, which returns the error.
func Run(ctx context.Context, o Options) error {
	o.Sort = cmp.Or(o.Sort, defaultSort)
	if o.Interval <= 0 {
		return fmt.Errorf("interval: %v is not positive", o.Interval)
	}
	if o.Job != "" && o.Fleet == nil {
		return errors.New("--job: needs --prometheus")
	}
	if o.Fleet != nil {
		return o.runFleet(ctx)
	}
	sensor, err := client.New(o.URL)
	if err != nil {
		return err
	}
	defer sensor.Close()
	columns := slices.Concat(gpuColumns, hcaColumns)
	if o.Devices {
		columns = slices.Concat(gpuDeviceColumns, portColumns)
	}
	if err := checkSort(columns, o.Sort); err != nil {
		return err
	}
	screen := newScreen(o.Out, o.Plain, !o.NoColor, fmt.Sprintf("accelscope top  %s  every %v", sensor, o.Interval))
	var began time.Time
	var now *reading
	return o.repeat(ctx, screen, func() (err error) {
		now, err = read(ctx, sensor)
		return err
	}, func() (shown bool, err error) {
		if began.IsZero() {
			began = now.at
		}
		if o.Once && !now.rated() && now.at.Sub(began) < maxWait {
			return false, nil
		}
		return true, o.show(screen, now)
	})
}

// repeat reads and shows at each interval until ctx is done, or once something was shown if Once is set.
func (o *Options) repeat(ctx context.Context, screen *screen, read func() error, show func() (shown bool, err error)) error {
	ticker := time.NewTicker(o.Interval)
	defer ticker.Stop()
	for {
		shown, err := false, read()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && o.Once:
			return err
		case err != nil:
			err = screen.message(fmt.Sprintf("%s; trying again", format.Escape(err.Error())))
		default:
			shown, err = show()
		}
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
		if o.Once && shown {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// show draws or prints a reading.
func (o *Options) show(screen *screen, r *reading) error {
	workloads, devices := uses(r), devices(r)
	for _, s := range slices.Concat(workloads, devices) {
		s.filter(o.Filter)
		s.sortBy(o.Sort)
	}
	if o.JSON {
		return printJSON(o.Out, r, workloads, devices)
	}
	var tables []grid
	if o.Devices {
		tables = grids(devices)
	} else {
		tables = append(grids(workloads), r.stalledGrid())
	}
	screen.rates = ""
	if seconds := r.workloads.RatesSeconds; seconds != nil {
		screen.rates = fmt.Sprintf("  rates over %s", format.Span(time.Duration(*seconds*float64(time.Second))))
	}
	return screen.draw(r.lines(), tables...)
}

const noRates = "no rates: the sensor has not compared two refreshes yet, 5 s apart; an older one never does with --no-web.pages"

// lines renders what is above the tables: verdicts, and why figures are missing.
func (r *reading) lines() []line {
	out := verdictLines(&r.verdicts, api.VerdictsPath)
	for _, reason := range r.missing {
		out = append(out, line{"incomplete: " + format.Escape(reason), colors[verdict.Warning]})
	}
	switch {
	case r.hasHCA() && r.workloads.RatesSeconds == nil:
		out = append(out, line{text: noRates})
	case len(r.workloads.Rows) == 0 && len(r.missing) == 0:
		out = append(out, line{text: "no workload uses an HCA or a GPU"})
	}
	return out
}
