// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/accelscope/accelscope/tests/tools/dashboards"
)

// record writes the recording rules' series for the second half of the past, as Prometheus computes them, for the
// dashboards.
func (f *fleet) record(ctx context.Context) error {
	text, err := f.rules(filepath.Join(f.root, "deploy/prometheus/rules/recording.yaml"))
	if err != nil {
		return err
	}
	var file struct {
		Groups []struct {
			Rules []struct{ Record, Expr string }
		}
	}
	if err := yaml.Unmarshal([]byte(text), &file); err != nil {
		return err
	}
	// Prometheus accepts samples up to an hour older than the newest, and computing them takes a part of that hour.
	begin := f.begin.Add(time.Duration(f.minutes/2) * time.Minute)
	for at := begin; time.Since(at) > time.Minute; at = at.Add(recordStep) {
		end := at.Add(recordStep - time.Minute)
		if now := time.Now(); end.After(now) {
			end = now
		}
		last := time.Since(at.Add(recordStep)) <= time.Minute
		for _, g := range file.Groups {
			for _, r := range g.Rules {
				answer, err := f.queryRange(ctx, r.Expr, at, end, time.Minute)
				if err != nil {
					return fmt.Errorf("%s: %w", r.Record, err)
				}
				if err := f.keep(ctx, r.Record, answer, end, last); err != nil {
					return fmt.Errorf("%s: %w", r.Record, err)
				}
				if err := f.store.settle(ctx); err != nil { // the next rule may read it
					return err
				}
			}
		}
	}
	return nil
}

// recordStep is the time that a query for a rule's past covers.
const recordStep = 10 * time.Minute

// keep writes an answer's series under the rule's name, some thousand in each request. A series that ends before the
// answer ends in Prometheus, too. After the last answer all series end: the loaded rules continue them.
func (f *fleet) keep(ctx context.Context, name string, answer dashboards.Answer, end time.Time, last bool) error {
	const most = 2000
	var body, one []byte
	for i, s := range answer.Series {
		s.Labels["__name__"] = name
		one = append(one[:0], encode(s.Labels)...)
		for _, p := range s.Values {
			one = appendSample(one, p.Value, int64(p.Time*1000))
		}
		if after := time.Unix(int64(s.Values[len(s.Values)-1].Time), 0).Add(time.Minute); !after.After(end) {
			one = appendSample(one, staleNaN, after.UnixMilli())
		} else if last {
			one = appendSample(one, staleNaN, int64(s.Values[len(s.Values)-1].Time*1000)+1)
		}
		body = protowire.AppendTag(body, 1, protowire.BytesType)
		body = protowire.AppendBytes(body, one)
		if i%most == most-1 || i == len(answer.Series)-1 {
			if err := f.store.send(ctx, outOfNodes, body); err != nil {
				return err
			}
			body = body[:0]
		}
	}
	return nil
}

// appendSample appends a sample as the field of a series; at is in milliseconds.
func appendSample(b []byte, value float64, at int64) []byte {
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(1+8+1+protowire.SizeVarint(uint64(at))))
	b = protowire.AppendTag(b, 1, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, math.Float64bits(value))
	b = protowire.AppendTag(b, 2, protowire.VarintType)
	return protowire.AppendVarint(b, uint64(at))
}
