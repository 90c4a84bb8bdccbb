// SPDX-License-Identifier: Apache-2.0

// Package authority makes certificates for tests, each with its own certificate authority.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
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
	Dir    string // has ca.crt, ca.key and what Sign writes
	CAFile string // ca.crt in Dir
	PEM    []byte // the same
	Roots  *x509.CertPool
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
}

// A Certificate is valid for a server and for a client. CertFile is NAME.crt, KeyFile NAME.key.
type Certificate struct {
	CertFile, KeyFile string
	PEM, KeyPEM       []byte
	Pair              tls.Certificate
}

// New makes an authority with a directory of the test.
func New(t testing.TB) *Authority {
	t.Helper()
	a, err := In(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// In makes an authority with a directory, which must exist. It is valid for a day.
func In(dir string) (*Authority, error) {
	a := &Authority{Dir: dir, Roots: x509.NewCertPool()}
	ca, err := a.sign("ca", &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	if err != nil {
		return nil, err
	}
	a.CAFile, a.PEM, a.cert, a.key = ca.CertFile, ca.PEM, ca.Pair.Leaf, ca.Pair.PrivateKey.(*ecdsa.PrivateKey)
	a.Roots.AddCert(a.cert)
	return a, nil
}

// Issue makes a certificate of an address, which is valid until a time.
func (a *Authority) Issue(t testing.TB, name, address string, until time.Time) Certificate {
	t.Helper()
	c, err := a.Sign(name, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotAfter: until, IPAddresses: []net.IP{net.ParseIP(address)},
	})
	if err != nil {
		t.Fatal(err)
	}
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

// Sign makes a key and a certificate of the names in template, and writes them.
func (a *Authority) Sign(name string, template *x509.Certificate) (Certificate, error) {
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	return a.sign(name, template)
}

// sign is Sign for any use. The first certificate signs itself. Some are valid only in the past.
func (a *Authority) sign(name string, template *x509.Certificate) (c Certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	template.SerialNumber, template.NotBefore = big.NewInt(time.Now().UnixNano()), time.Now().Add(-24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return c, fmt.Errorf("certificate of %s: %w", name, err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return c, err
	}
	c = Certificate{
		CertFile: filepath.Join(a.Dir, name+".crt"), KeyFile: filepath.Join(a.Dir, name+".key"),
		PEM: block("CERTIFICATE", der), KeyPEM: block("PRIVATE KEY", private),
	}
	if c.Pair, err = tls.X509KeyPair(c.PEM, c.KeyPEM); err != nil {
		return c, err
	}
	return c, errors.Join(os.WriteFile(c.CertFile, c.PEM, 0o600), os.WriteFile(c.KeyFile, c.KeyPEM, 0o600))
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
