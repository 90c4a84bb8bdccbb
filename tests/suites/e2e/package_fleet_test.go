// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// fleet starts the page of all nodes by its unit, with all restrictions. Its Prometheus is overloaded.
func (d *deployment) fleet(t *testing.T) {
	const service, defaults, page = "accelscope-fleet.service", "/etc/default/accelscope-fleet", "http://127.0.0.1:9877/"
	show := func(name string) string {
		return strings.TrimSpace(sh(t, "systemctl", "show", "--value", "--property="+name, service))
	}
	if state := show("UnitFileState"); state != "disabled" {
		t.Errorf("the unit is %q", state)
	}
	prometheus := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "busy", http.StatusServiceUnavailable)
	}))
	defer prometheus.Close()
	options := "ACCELSCOPE_PROMETHEUS=" + prometheus.URL + "\nACCELSCOPE_FLEET_OPTIONS=--web.listen-address=127.0.0.1:9877\n"
	if err := os.WriteFile(defaults, []byte(options), 0o644); err != nil {
		t.Fatal(err)
	}
	sh(t, "systemctl", "start", service)
	eventually(t, 30*time.Second, func() error {
		response, err := http.Get(page)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err == nil && (response.StatusCode != http.StatusOK || !strings.Contains(string(text), "503")) {
			err = fmt.Errorf("%s: %s", response.Status, text)
		}
		return err
	})
	status, err := os.ReadFile("/proc/" + show("MainPID") + "/status")
	if err != nil {
		t.Fatal(err)
	}
	if s := string(status); strings.Contains(s, "\nUid:\t0\t") || !strings.Contains(s, "\nCapEff:\t0000000000000000\n") ||
		!strings.Contains(s, "\nCapBnd:\t0000000000000000\n") {
		t.Errorf("its process has permissions:\n%s", s)
	}
	sh(t, "systemctl", "stop", service)
	if result := show("Result"); result != "success" {
		t.Errorf("stopped: %s", result)
	}
	if err := os.Remove(defaults); err != nil { // the package did not bring it
		t.Error(err)
	}
}
