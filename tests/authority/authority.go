// SPDX-License-Identifier: Apache-2.0

// Package authority makes certificates for tests, each test with a certificate authority of its own.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates.
type Authority struct {
	Dir    string // of the test; has CAFile and what Issue writes
	CAFile string // ca.pem in Dir
	PEM    []byte // the same
	Roots  *x509.CertPool
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
}

// A Certificate is valid for a server and for a client. CertFile is NAME.pem, KeyFile NAME.key.
type Certificate struct {
	CertFile, KeyFile string
	PEM, KeyPEM       []byte
	Pair              tls.Certificate
}

// New makes an authority.
func New(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{Dir: t.TempDir(), Roots: x509.NewCertPool()}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.key = newKey(t)
	a.cert = a.sign(t, template, template, a.key)
	a.Roots.AddCert(a.cert)
	a.PEM = block("CERTIFICATE", a.cert.Raw)
	a.CAFile = a.Write(t, "ca.pem", string(a.PEM))
	return a
}

// Issue makes a certificate of an address, which is valid until a time.
func (a *Authority) Issue(t testing.TB, name, address string, until time.Time) Certificate {
	t.Helper()
	key := newKey(t)
	cert := a.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotAfter: until, IPAddresses: []net.IP{net.ParseIP(address)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, key)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c := Certificate{PEM: block("CERTIFICATE", cert.Raw), KeyPEM: block("PRIVATE KEY", private)}
	c.CertFile, c.KeyFile = a.Write(t, name+".pem", string(c.PEM)), a.Write(t, name+".key", string(c.KeyPEM))
	c.Pair = tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
	return c
}

// Local is Issue for 127.0.0.1 and an hour.
func (a *Authority) Local(t testing.TB, name string) Certificate {
	t.Helper()
	return a.Issue(t, name, "127.0.0.1", time.Now().Add(time.Hour))
}

// Client returns a client that trusts only servers with certificates of the authority.
func (a *Authority) Client(t testing.TB) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: a.Roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// Write writes a file into Dir, and returns its path.
func (a *Authority) Write(t testing.TB, name, text string) string {
	t.Helper()
	file := filepath.Join(a.Dir, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign makes the certificate of a key. Some are valid for the past only.
func (a *Authority) sign(t testing.TB, template, parent *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	template.SerialNumber, template.NotBefore = big.NewInt(time.Now().UnixNano()), time.Now().Add(-24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
