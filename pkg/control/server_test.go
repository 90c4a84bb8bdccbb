// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// released remembers the last release.
type released struct {
	noGPUs
	reason string
	lasts  time.Duration
}

func (r *released) Release(reason string, d time.Duration) model.LibraryStatus {
	r.reason, r.lasts = reason, d
	return r.Status()
}

// TestRelease: the reason of a release is one line of maxReason bytes at most, and the release ends after longestRelease at the latest.
func TestRelease(t *testing.T) {
	long := strings.Repeat("x", maxReason)
	for query, want := range map[string]released{
		"":                                      {reason: "requested by accelscope gpu release", lasts: defaultRelease},
		"?reason=a+new%0Adriver&for=10m":        {reason: "a new; driver", lasts: 10 * time.Minute},
		"?reason=" + long + "yz":                {reason: long, lasts: defaultRelease},
		"?for=" + longestRelease.String():       {reason: "requested by accelscope gpu release", lasts: longestRelease},
		"?for=" + (longestRelease + 1).String(): {},
		"?for=-1s":                              {},
	} {
		var got released
		answer := httptest.NewRecorder()
		newControl(&got, nil).ServeHTTP(answer, httptest.NewRequest(http.MethodPost, releasePath+query, nil))
		if got != want || (answer.Code == http.StatusOK) != (want.lasts > 0) {
			t.Errorf("%s: %d, %+v, want %+v", query, answer.Code, got, want)
		}
	}
}
