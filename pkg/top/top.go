// SPDX-License-Identifier: Apache-2.0

// Package top shows in a terminal who uses what. It reads the metrics of any
// running sensor over HTTP, as Prometheus would: it knows nothing that a
// dashboard could not know.
//
// scrape.go turns an exposition into a sample, table.go two samples into rows,
// terminal.go rows into text.
package top

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Options say what to show, and where.
type Options struct {
	// URL of the metrics. A user and a password in it are used as basic auth.
	URL string
	// Interval between two scrapes; the rates are those of one interval.
	Interval time.Duration
	// Once prints one table, after two scrapes, and ends.
	Once bool
	// Plain prints table after table instead of redrawing, as is done anyway
	// when Out is not a terminal.
	Plain bool
	Out   io.Writer
}

// scrapeTimeout bounds one scrape. A sensor answers within its deadlines, also
// when a driver hangs.
const scrapeTimeout = 10 * time.Second

// Run shows tables until ctx is done. A scrape that fails is told in one line
// and tried again, except with Once, which returns the error.
func Run(ctx context.Context, o Options) error {
	u, err := url.Parse(o.URL)
	if err != nil {
		return fmt.Errorf("url: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("url: want http://… or https://…, not %q", u.Redacted())
	}
	if o.Interval <= 0 {
		return fmt.Errorf("interval: %v is not positive", o.Interval)
	}
	client := &http.Client{Timeout: scrapeTimeout}
	defer client.CloseIdleConnections()
	screen := newScreen(o.Out, o.Plain, fmt.Sprintf("accelscope top  %s  every %v", u.Redacted(), o.Interval))

	ticker := time.NewTicker(o.Interval)
	defer ticker.Stop()
	var last *sample
	for {
		now, err := scrape(ctx, client, o.URL)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && o.Once:
			return err
		case err != nil:
			err = screen.message(fmt.Sprintf("%s; trying again", escape(err.Error())))
		case o.Once && last == nil:
			// Rates need a second scrape.
		default:
			err = screen.draw(rows(last, now), now.gpus.rows())
		}
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
		if o.Once && last != nil {
			return nil
		}
		if now != nil {
			last = now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
