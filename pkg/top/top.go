// SPDX-License-Identifier: Apache-2.0

// Package top shows the users of devices in a terminal. It reads the metrics of any running
// sensor over HTTP, like Prometheus, and the verdicts and stalled peers that the sensor lists. Or it shows all nodes, as package fleet
// reads them from a Prometheus (fleet.go).
//
// scrape.go converts an exposition to a sample; table.go, gpus.go and devices.go two samples to a sheet, which sheet.go sorts and
// filters; terminal.go and json.go write it.
package top

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
)

// Options configure Run.
type Options struct {
	// URL of the metrics. A user and a password in it are used as basic auth.
	URL string
	// Fleet shows all nodes instead of those metrics; nil: none.
	Fleet FleetReader
	// Interval between two scrapes; the rates are those of one interval.
	Interval time.Duration
	// Once prints one table, after two scrapes, and ends.
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

// scrapeTimeout bounds one scrape. A sensor answers within its own deadlines, also if a driver
// hangs.
const scrapeTimeout = 10 * time.Second

// Run shows tables until ctx is done. A failed scrape is reported in one line and retried,
// except with Once, which returns the error.
func Run(ctx context.Context, o Options) error {
	o.Sort = cmp.Or(o.Sort, defaultSort)
	if o.Interval <= 0 {
		return fmt.Errorf("interval: %v is not positive", o.Interval)
	}
	if o.Fleet != nil {
		return o.runFleet(ctx)
	}
	u, err := url.Parse(o.URL)
	if err != nil {
		return fmt.Errorf("url: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("url: want http://… or https://…, not %q", u.Redacted())
	}
	if err := checkSort(o.columns(), o.Sort); err != nil {
		return err
	}
	client := &http.Client{Timeout: scrapeTimeout}
	defer client.CloseIdleConnections()
	screen := newScreen(o.Out, o.Plain, !o.NoColor, fmt.Sprintf("accelscope top  %s  every %v", u.Redacted(), o.Interval))
	var last, now *sample
	return o.repeat(ctx, screen, func() (err error) {
		now, err = scrape(ctx, client, o.URL)
		return err
	}, func() (shown bool, err error) {
		if !o.Once || last != nil { // rates need a second scrape
			shown, err = true, o.show(screen, last, now)
		}
		last = now
		return shown, err
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

func (o *Options) columns() []column {
	if o.Devices {
		return deviceColumns
	}
	return useColumns
}

// show draws or prints one interval. last may be nil.
func (o *Options) show(screen *screen, last, now *sample) error {
	workloads, devices := uses(last, now), devices(last, now)
	for _, s := range []*sheet{workloads, devices} {
		s.filter(o.Filter)
		s.sortBy(o.Sort)
	}
	switch {
	case o.JSON:
		return printJSON(o.Out, now.at, now.verdicts, workloads, devices)
	case o.Devices:
		return screen.draw(now.verdicts.lines(verdictsPath), devices.grid())
	}
	return screen.draw(now.verdicts.lines(verdictsPath), workloads.grid(), grid{stalledHeader, now.stalled.rows()})
}
