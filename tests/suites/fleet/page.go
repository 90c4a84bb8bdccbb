// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	nodes "github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/fleet/page"
)

// site serves the pages of all nodes like accelscope fleet. Before its first view nothing is known.
func (f *fleet) site() (http.Handler, error) {
	api, err := nodes.Connect(f.url, "")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	for pattern, h := range page.Handlers(page.Options{Reader: nodes.NewReader(api), Version: "bench"}) {
		mux.Handle(pattern, h)
	}
	return mux, nil
}

// view prints the cost of the page's first view, and of the next view, which uses the kept answers.
func (f *fleet) view(ctx context.Context) error {
	site, err := f.site()
	if err != nil {
		return err
	}
	before, _, err := f.own(ctx)
	if err != nil {
		return err
	}
	for _, name := range []string{"first", "next"} {
		began := time.Now()
		answer := httptest.NewRecorder()
		site.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
		fmt.Printf("accelscope fleet: the %s view takes %.3f s and has %.0f kB (status %d)\n",
			name, time.Since(began).Seconds(), float64(answer.Body.Len())/1000, answer.Code)
	}
	after, _, err := f.own(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("accelscope fleet: Prometheus used %.2f s of CPU time for both\n\n",
		after["process_cpu_seconds_total"]-before["process_cpu_seconds_total"])
	return nil
}
