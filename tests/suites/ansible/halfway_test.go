// SPDX-License-Identifier: Apache-2.0

//go:build vm

package ansible

import "testing"

// TestFailureHalfway checks a run that fails halfway, and one whose key does not match the certificate.
func TestFailureHalfway(t *testing.T) {
	n := start(t)
	first, second := n.twoPackages(t)
	a := n.authority(t)
	server := a.Local(t, "machine")
	v := vars{
		"accelscope_package": first, "accelscope_tls_certificate": server.CertFile, "accelscope_tls_key": server.KeyFile,
		"accelscope_config": vars{"grace": "1m"},
	}
	if r := n.play(t, "install.yaml", v); r.failed {
		t.Fatal(r.raw)
	}
	pid := n.pid(t)

	// The upgrade has a configuration that is rejected; a second run corrects it.
	if r := n.play(t, "install.yaml", v.with(vars{"accelscope_package": second, "accelscope_config": vars{"grase": "1m"}})); !r.failed {
		t.Fatal("a wrong key is taken")
	}
	r := n.play(t, "install.yaml", v.with(vars{"accelscope_package": second}))
	t.Logf("failed %v, changed %v; exe %s", r.failed, r.changed, n.sh(t, "readlink /proc/"+n.pid(t)+"/exe"))
	if r.failed || n.pid(t) == pid {
		t.Errorf("failed %v, changed %v: the program that was replaced still runs", r.failed, r.changed)
	}

	// The certificate is renewed without its key.
	renewed := a.Local(t, "renewed").CertFile
	r = n.play(t, "install.yaml", v.with(vars{"accelscope_package": second, "accelscope_tls_certificate": renewed}))
	status := n.curl(t, "--max-time 3 --retry 0 -k https://127.0.0.1:9847/healthz")
	t.Logf("failed %v, changed %v, status %s", r.failed, r.changed, status)
	if !r.failed {
		t.Errorf("a certificate without its key is taken on the first node, and so on every node: status %s", status)
	}
}
