// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// kubeletCertificate is the link to the certificate that the kubelet has requested last.
const kubeletCertificate = "/var/lib/kubelet/pki/kubelet-server-current.pem"

// testCertificates has the kubelet rotate its certificate, while it runs. A sensor that verifies it by the CA, and one that accepts this
// certificate only, must go on: with the names, and with answers of the kubelet. One that has a copy of the former certificate must not
// go on, and say why.
func testCertificates(t *testing.T) {
	const ns = "certificates"
	makeNamespace(t, ns)
	t.Cleanup(func() { removePods(t, ns) })
	t.Cleanup(func() { // the context of the test has ended
		running.kubelet.stop(syscall.SIGTERM)
		if err := running.startKubelet(context.Background()); err != nil {
			t.Error(err)
		}
	})
	requested := []string{"serverTLSBootstrap: true", `tlsCertFile: ""`, `tlsPrivateKeyFile: ""`}
	restartKubelet(t, nil, requested...)
	approve(t)
	apply(t, podYAML(ns, "writes", "  volumes: [{name: data, emptyDir: {}}]\n  containers:\n"+
		"  - {name: main, IMAGE, SLEEP, volumeMounts: [{name: data, mountPath: /data}]}\n"))
	ready(t, ns, "pod/writes")
	serving := rotated(t, "")
	written := 0
	answers := func(t *testing.T) { // only a new answer of the kubelet has what the pod writes now
		t.Helper()
		healthy(t)
		written++
		until(t, "the pod writes", func(ctx context.Context) error { // a new kubelet does not know it at once
			_, err := running.kubectl(ctx, "--namespace="+ns, "exec", "writes", "--", "/bin/busybox", "dd", "if=/dev/urandom",
				fmt.Sprint("of=/data/", written), "bs=1M", "count=8")
			return err
		})
		until(t, "the sensor has what the pod writes", func(ctx context.Context) error {
			f, err := scrape(ctx)
			got := f.values("pod_ephemeral_storage_usage_bytes", "namespace", "pod")[ns+" writes"]
			if err == nil && (got < float64(written*8<<20) || got > float64((written+1)*8<<20)) {
				err = fmt.Errorf("%v bytes after %d times 8 MiB", got, written)
			}
			return err
		})
	}

	t.Run("authority", func(t *testing.T) {
		startSensor(t)
		answers(t)
		steady(t, func() {
			serving = rotated(t, serving)
			answers(t)
			restartKubelet(t, nil, requested...) // ends the connections that were verified by the former certificate
			answers(t)
		})
	})
	t.Run("certificate", func(t *testing.T) {
		startSensor(t, "--kubelet.certificate-file="+kubeletCertificate)
		answers(t)
		steady(t, func() {
			serving = rotated(t, serving)
			answers(t)
		})
	})
	t.Run("copy", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "kubelet.pem")
		copied := ""
		save := func() {
			t.Helper()
			text, err := os.ReadFile(kubeletCertificate)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			block, _ := pem.Decode(text)
			certificate, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			copied = certificate.SerialNumber.String()
		}
		save()
		startSensor(t, "--kubelet.certificate-file="+path)
		healthyAfter(t, save) // the kubelet may have another one already
		answers(t)
		steady(t, func() {
			rotated(t, copied)
			restartKubelet(t, nil, requested...)
			until(t, "the sensor says why", func(ctx context.Context) error {
				const why = "the kubelet has another certificate than --kubelet.certificate-file"
				text, err := request(ctx, http.DefaultClient, sensorURL+"/readyz")
				if err == nil && !strings.Contains(string(text), why) {
					err = fmt.Errorf("readyz: %s", text)
				}
				return err
			})
			healthyAfter(t, save)
			answers(t)
		})
	})
}

// approve approves the requests of the kubelet for certificates until the end of the test, as nothing in a cluster does by itself.
func approve(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			var requests certificatesv1.CertificateSigningRequestList
			if running.get(ctx, "/apis/certificates.k8s.io/v1/certificatesigningrequests", &requests) == nil {
				for i := range requests.Items {
					if r := &requests.Items[i]; r.Spec.SignerName == certificatesv1.KubeletServingSignerName && len(r.Status.Conditions) == 0 {
						_, _ = running.kubectl(ctx, "certificate", "approve", r.Name) // or again
					}
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// rotated waits until the kubelet serves another certificate than the former one, which is known by its serial number.
func rotated(t *testing.T, former string) (serial string) {
	t.Helper()
	until(t, "another certificate", func(ctx context.Context) error {
		dialer := tls.Dialer{Config: &tls.Config{RootCAs: running.ca.Roots, MinVersion: tls.VersionTLS12}}
		conn, err := dialer.DialContext(ctx, "tcp", nodeIP+":10250")
		if err != nil {
			return err
		}
		defer conn.Close()
		serial = conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String()
		if serial == former {
			return fmt.Errorf("still the certificate %s", serial)
		}
		return nil
	})
	t.Logf("the kubelet serves the certificate %s after %s", serial, former)
	return serial
}
