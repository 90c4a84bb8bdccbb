// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"
)

// costs are a sensor's costs over the rounds: per paced scrape, including the work between scrapes, and without
// scrapes.
type costs struct {
	cpu      []float64 // ms per scrape
	p50, p99 []float64 // ms
	idle     []float64 // ms/s
	series   float64
	text     float64
	memory   memory
}

func (c *costs) scrape(ctx context.Context, p *process, scrapes int) error {
	begin, err := totalTime(p.pid())
	if err != nil {
		return err
	}
	var latencies []float64
	var last answer
	for range scrapes {
		if last, err = p.scrape(); err != nil {
			return err
		}
		latencies = append(latencies, ms(last.latency))
		sleep(ctx, pause)
	}
	end, err := totalTime(p.pid())
	if err != nil {
		return err
	}
	c.cpu = append(c.cpu, ms(end-begin)/float64(scrapes))
	c.p50, c.p99 = append(c.p50, quantile(latencies, 0.5)), append(c.p99, quantile(latencies, 0.99))
	text, err := last.text()
	if err != nil {
		return err
	}
	c.series, c.text = 0, float64(len(text))/1e3
	samples(text, func(string, float64) { c.series++ })
	c.memory, err = readMemory(p.pid())
	return err
}

// rest does not scrape p for a while.
func (c *costs) rest(ctx context.Context, p *process, quiet time.Duration) error {
	begin, err := totalTime(p.pid())
	if err != nil {
		return err
	}
	sleep(ctx, quiet)
	end, err := totalTime(p.pid())
	if err != nil {
		return err
	}
	c.idle = append(c.idle, ms(end-begin)/quiet.Seconds())
	return ctx.Err()
}
