// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// authority is the cluster's certificate authority. Its files are in dir: ca.crt, ca.key, and those of issued certificates.
type authority struct {
	dir         string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	issued      int64
}

func newAuthority(dir string) (*authority, error) {
	a := &authority{dir: dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "kubernetes"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	var err error
	if a.key, err = a.write("ca", template, nil, nil); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	a.certificate, err = x509.ParseCertificate(block.Bytes)
	return a, err
}

// issue writes NAME.crt and NAME.key, for the user of a client and, with hosts, for a server.
func (a *authority) issue(name, user, group string, hosts ...string) error {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: user},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
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
	_, err := a.write(name, template, a.certificate, a.key)
	return err
}

// write makes a key and its certificate; without a parent the certificate is self-signed.
func (a *authority) write(name string, template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if parent == nil {
		parent, signer = template, key
	}
	a.issued++
	template.SerialNumber = big.NewInt(a.issued)
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	certificate, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", name, err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	for suffix, block := range map[string]*pem.Block{
		".crt": {Type: "CERTIFICATE", Bytes: certificate},
		".key": {Type: "EC PRIVATE KEY", Bytes: der},
		".pub": {Type: "PUBLIC KEY", Bytes: public}, // the key of tokens is needed in this form
	} {
		if err := os.WriteFile(filepath.Join(a.dir, name+suffix), pem.EncodeToMemory(block), 0o600); err != nil {
			return nil, err
		}
	}
	return key, nil
}

// kubeconfig writes NAME.kubeconfig for the issued certificate NAME.
func (a *authority) kubeconfig(name string) (path string, err error) {
	path = filepath.Join(a.dir, name+".kubeconfig")
	return path, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
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
`, nodeIP, filepath.Join(a.dir, "ca.crt"), filepath.Join(a.dir, name)), 0o600)
}

// client returns a client that trusts the cluster, and identifies itself by certificates.
func (a *authority) client(own ...tls.Certificate) *http.Client {
	roots := x509.NewCertPool()
	roots.AddCert(a.certificate)
	return &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: own, MinVersion: tls.VersionTLS12}},
		Timeout:   time.Minute,
	}
}
