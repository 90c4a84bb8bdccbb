// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

// issue writes NAME.crt and NAME.key into the directory of the cluster's authority, for the user of a client and, with hosts, for a server.
func (c *cluster) issue(name, user, group string, hosts ...string) error {
	template := &x509.Certificate{Subject: pkix.Name{CommonName: user}, NotAfter: time.Now().Add(24 * time.Hour)}
	if group != "" {
		template.Subject.Organization = []string{group}
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	_, err := c.ca.Sign(name, template)
	return err
}

// kubeconfig writes NAME.kubeconfig for the issued certificate NAME.
func (c *cluster) kubeconfig(name string) error {
	return os.WriteFile(c.pki(name+".kubeconfig"), fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: test
  cluster: {server: "https://%s:6443", certificate-authority: %s}
users:
- name: user
  user: {client-certificate: %[3]s.crt, client-key: %[3]s.key}
contexts:
- name: test
  context: {cluster: test, user: user}
current-context: test
`, nodeIP, c.ca.CAFile, c.pki(name)), 0o600)
}

// client returns a client that trusts the cluster, and identifies itself by certificates.
func (c *cluster) client(own ...tls.Certificate) *http.Client {
	return &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: c.ca.Roots, Certificates: own, MinVersion: tls.VersionTLS12}},
		Timeout:   time.Minute,
	}
}
