// SPDX-License-Identifier: Apache-2.0

//go:build vm

// Package ansible applies the role of deploy/ansible to a copy of this machine (tests/machines/machine): the unchanged
// playbooks, the package that `make packages` builds, and the real systemd.
package ansible

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/authority"
	"github.com/accelscope/accelscope/tests/machines/machine"
	"github.com/accelscope/accelscope/tests/tools/child"
)

const (
	password = "scrape"
	// A hash in the format of htpasswd -nBC 10.
	hash = "$2b$10$abcdefghijklmnopqrstuuoRYVu5otJQmqaMGllMFMyUX1t9f943O"
)

// start boots a machine that is the only node of an inventory.
func start(t *testing.T) node {
	t.Helper()
	dir := t.TempDir()
	checkout, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.Start(t.Context(), dir, checkout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	inventory := "[accelscope]\nnode001 ansible_connection=local ansible_become=false\n"
	if err := os.WriteFile(filepath.Join(dir, "inventory"), []byte(inventory), 0o600); err != nil {
		t.Fatal(err)
	}
	return node{Machine: m, dir: dir, systemd: true}
}

// twoPackages returns the .deb that `make packages` built, and the same package with a later version.
func (n node) twoPackages(t *testing.T) (first, second string) {
	t.Helper()
	found, err := filepath.Glob("../../../bin/accelscope_*.deb")
	if err != nil || len(found) == 0 {
		t.Fatal("no bin/accelscope_*.deb: make packages")
	}
	newest := slices.MaxFunc(found, func(a, b string) int { return modified(t, a).Compare(modified(t, b)) })
	first, second = filepath.Join(n.dir, "first.deb"), filepath.Join(n.dir, "second.deb")
	for version, file := range map[string]string{"0.0.1": first, "0.0.2": second} {
		tree := filepath.Join(n.dir, version)
		for _, command := range [][]string{
			{"dpkg-deb", "-R", newest, tree},
			{"sed", "-i", "s/^Version:.*/Version: " + version + "/", filepath.Join(tree, "DEBIAN/control")},
			{"dpkg-deb", "-b", "-Znone", tree, file},
		} {
			if out, err := child.Command(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %v: %s", command, err, out)
			}
		}
	}
	return first, second
}

func modified(t *testing.T, file string) time.Time {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return info.ModTime()
}

// authority makes an authority with the directory that the machine shares.
func (n node) authority(t *testing.T) *authority.Authority {
	t.Helper()
	a, err := authority.In(n.dir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// pid returns the process id of the service; 0 if it does not run.
func (n node) pid(t *testing.T) string {
	t.Helper()
	return n.sh(t, "systemctl show --value -p MainPID accelscope")
}

// curl sends a request to the sensor and returns the HTTP status; 000 if there is no response.
func (n node) curl(t *testing.T, args string) string {
	t.Helper()
	out, _ := n.Sh(t.Context(), "curl -sS -o /dev/null -w '%{http_code}' --retry 60 --retry-delay 1 --retry-connrefused "+args+" 2>/dev/null")
	return out
}

// modes returns the files of the configuration with owner and mode.
func (n node) modes(t *testing.T) string {
	t.Helper()
	return n.sh(t, "cd /etc/accelscope && stat -c '%n %U:%G %a' * | sort")
}

// The tasks that a playbook changes.
var (
	install = []string{
		"Create the package directory", "Copy the package", "Install the .deb", "Write web.yaml", "Write accelscope.yaml",
		"Write the environment file", "Create the drop-in directory", restart,
	}
	upgrade = []string{"Copy the package", "Install the .deb", restart}
)

const (
	restart = "Restart accelscope"
	// everything lists the files of accelscope on a machine, by name, and the listening sockets.
	everything = "find /etc /usr /lib /var /run -xdev -name '*accelscope*' | sort; ss -Hltn"
)

func TestPackage(t *testing.T) {
	t.Parallel()
	n := start(t)
	first, second := n.twoPackages(t)
	a := n.authority(t)
	server := a.Local(t, "machine")
	v := vars{
		"accelscope_package":     first,
		"accelscope_config":      vars{"grace": "1m", "workload.labels": []string{"team", "app"}},
		"accelscope_environment": vars{"ACCELSCOPE_LOG_FORMAT": "json"},
	}
	metrics := func(want string, args string) {
		t.Helper()
		if status := n.curl(t, args); status != want {
			t.Errorf("curl %s: %s, want %s", args, status, want)
		}
	}

	before := n.sh(t, everything)
	r := n.play(t, "install.yaml", v, "--check")
	if after := n.sh(t, "command -v accelscope; ls /etc/accelscope /var/cache/accelscope 2>/dev/null; true"); r.failed || after != "" {
		t.Errorf("check mode: failed %v, made %s: %s", r.failed, after, r.raw)
	}

	n.want(t, "install.yaml", v, install)
	if got, want := n.modes(t), "accelscope.yaml root:root 644\nweb.yaml root:root 600"; got != want {
		t.Errorf("/etc/accelscope:\n%s\nwant:\n%s", got, want)
	}
	const header = "# Ansible's role accelscope wrote this: change it there\n"
	if got, want := n.sh(t, "cat /etc/accelscope/accelscope.yaml"),
		header+"grace: 1m\nworkload.labels:\n- team\n- app"; got != want {
		t.Errorf("accelscope.yaml:\n%s\nwant:\n%s", got, want)
	}
	if got := n.sh(t, "tail -n 1 /etc/default/accelscope"); got != `ACCELSCOPE_LOG_FORMAT="json"` {
		t.Errorf("/etc/default/accelscope: %s", got)
	}
	if got := n.sh(t, "systemctl is-enabled accelscope; systemctl is-active accelscope; journalctl --sync; journalctl -o cat -u accelscope | grep -c '^{'"); !strings.HasPrefix(got, "enabled\nactive\n") || strings.HasSuffix(got, "\n0") {
		t.Errorf("the service: %s", got)
	}
	metrics("200", "http://127.0.0.1:9847/metrics")
	got := n.sh(t, "stat -c '%A %U' /run/accelscope /run/accelscope/control.sock; accelscope gpu release --for=1s")
	if !strings.HasPrefix(got, "drwx------ root\nsrw------- root\nreleased: nothing was open\nuntil ") {
		t.Errorf("the control socket: %s", got)
	}

	pid := n.pid(t)
	n.want(t, "install.yaml", v, nil)
	if n.pid(t) != pid {
		t.Error("a second run restarts it")
	}

	changes := v.with(vars{"accelscope_config": vars{"grace": "2m"}})
	n.want(t, "install.yaml", changes, []string{"Write accelscope.yaml", restart}, "--check")
	if n.pid(t) != pid || n.sh(t, "grep -c 2m /etc/accelscope/accelscope.yaml || true") != "0" {
		t.Error("check mode changes something")
	}

	// TLS and a password; neither key nor hash is printed.
	secured := v.with(vars{
		"accelscope_tls_certificate": server.CertFile, "accelscope_tls_key": server.KeyFile,
		"accelscope_basic_auth_users": vars{"prometheus": hash},
	})
	r = n.want(t, "install.yaml", secured, []string{
		"Copy the certificate and the client CA", "Copy the key", "Write web.yaml", "Write accelscope.yaml", restart,
	}, "--diff", "-vvv")
	if strings.Contains(r.raw, hash) || strings.Contains(r.raw, strings.Split(string(server.KeyPEM), "\n")[1]) {
		t.Error("a secret is in what ansible-playbook prints")
	}
	if got, want := n.modes(t), "accelscope.yaml root:root 644\ntls.crt root:root 644\ntls.key root:root 600\nweb.yaml root:root 600"; got != want {
		t.Errorf("/etc/accelscope:\n%s\nwant:\n%s", got, want)
	}
	metrics("401", "--cacert "+a.CAFile+" https://127.0.0.1:9847/metrics")
	metrics("200", "--cacert "+a.CAFile+" -u prometheus:"+password+" https://127.0.0.1:9847/metrics")

	// A rejected configuration changes nothing and does not restart the service.
	pid = n.pid(t)
	files := n.sh(t, "md5sum /etc/accelscope/*")
	for name, bad := range map[string]vars{
		"unknown key":           {"accelscope_config": vars{"grase": "1m"}},
		"no such state":         {"accelscope_state": "latest"},
		"no dictionary":         {"accelscope_config": "grace"},
		"no such value":         {"accelscope_config": vars{"events.otlp-endpoint": "collector:4317", "events.queue-size": 0}},
		"no such web option":    {"accelscope_web_config": vars{"tls_server": vars{}}},
		"password in the clear": {"accelscope_basic_auth_users": vars{"prometheus": "s3cret"}},
		"key alone":             {"accelscope_tls_certificate": ""},
		"package and binary":    {"accelscope_binary": "/bin/true"},
	} {
		if r := n.play(t, "install.yaml", secured.with(bad)); !r.failed || len(r.changed) > 0 || strings.Contains(r.raw, "s3cret") {
			t.Errorf("%s: failed %v, changed %v: %s", name, r.failed, r.changed, r.raw)
		}
	}
	if n.pid(t) != pid || n.sh(t, "md5sum /etc/accelscope/*") != files {
		t.Error("what was refused changed something")
	}

	// Back to plain HTTP, with an option that needs a drop-in of the unit.
	v["accelscope_config"] = vars{"rdma.qp-counters": "manage"}
	n.want(t, "install.yaml", v, []string{
		"Write web.yaml", "Write accelscope.yaml", "Remove certificates that are not configured",
		"Install drop-ins that the configuration needs", restart,
	})
	metrics("200", "http://127.0.0.1:9847/metrics")
	const granted = "systemctl show --value -p CapabilityBoundingSet accelscope | grep -c cap_net_admin || true"
	if n.sh(t, granted) != "1" {
		t.Error("rdma.qp-counters=manage without CAP_NET_ADMIN")
	}
	v["accelscope_config"] = vars{}
	n.want(t, "install.yaml", v, []string{"Write accelscope.yaml", "Remove drop-ins that the configuration does not need", restart})
	if n.sh(t, granted) != "0" {
		t.Error("CAP_NET_ADMIN is left")
	}

	// An upgrade and a downgrade.
	const version = "dpkg-query -W -f '${Version}' accelscope"
	n.want(t, "install.yaml", v.with(vars{"accelscope_package": second}), upgrade)
	if got := n.sh(t, version); got != "0.0.2" {
		t.Errorf("after the upgrade: %s", got)
	}
	n.want(t, "install.yaml", v, upgrade)
	if got := n.sh(t, version); got != "0.0.1" {
		t.Errorf("after the rollback: %s", got)
	}
	metrics("200", "http://127.0.0.1:9847/metrics")

	n.want(t, "remove.yaml", v, []string{"Stop the service", "Remove the .deb", "Remove remaining files of the program"})
	if got := n.sh(t, "command -v accelscope; systemctl is-active accelscope; ls /etc/accelscope"); got != "inactive\naccelscope.yaml\nweb.yaml" {
		t.Errorf("after the removal: %s", got)
	}
	n.want(t, "remove.yaml", v, nil)
	n.sh(t, "touch /etc/accelscope/of-somebody-else")
	n.want(t, "remove.yaml", v.with(vars{"accelscope_purge": true}), []string{"Remove the .deb", "Remove the configuration"})
	if after := n.sh(t, everything); after != before {
		t.Errorf("after the purge:\n%s\nbefore:\n%s", after, before)
	}
}

// TestBinary installs the program without a package; first where systemd does not run, as when an image is built.
func TestBinary(t *testing.T) {
	t.Parallel()
	n := start(t)
	n.twoPackages(t)
	v := vars{"accelscope_binary": filepath.Join(n.dir, "0.0.1/usr/bin/accelscope")}
	before := n.sh(t, everything)
	install := []string{
		"Copy the sensor", "Copy accelscope-tool", "Copy the unit", "Create the configuration directory", "Write web.yaml", "Write accelscope.yaml",
		"Write the environment file", "Create the drop-in directory",
	}
	image := n
	image.systemd = false
	image.want(t, "install.yaml", v, install)
	image.want(t, "install.yaml", v, nil)

	n.want(t, "install.yaml", v, []string{"Enable and start the service"})
	if status := n.curl(t, "http://127.0.0.1:9847/readyz"); status != "200" {
		t.Errorf("/readyz: %s", status)
	}
	n.want(t, "remove.yaml", v.with(vars{"accelscope_purge": true}),
		[]string{"Stop the service", "Remove remaining files of the program", "Remove the configuration"})
	if after := n.sh(t, everything); after != before {
		t.Errorf("after the purge:\n%s\nbefore:\n%s", after, before)
	}
}
