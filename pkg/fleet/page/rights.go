// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/web"
)

// Rights are what people may see behind a reverse proxy that knows them. Without a header everybody sees everything.
type Rights struct {
	// Header has the namespaces of a person, separated by commas: * for everything, - for jobs without a namespace. The proxy sets it, and
	// removes it from what clients send.
	Header string
	// Key signs links to jobs, which show a job without the header for Lifetime. Empty: no links.
	Key      []byte
	Lifetime time.Duration
}

// MinKey is the least length of Rights.Key, as long as a signature.
const MinKey = sha256.Size

// The parameters of a signed link: when it ends in Unix time, and the signature.
const (
	untilField     = "until"
	signatureField = "signature"
)

// guard refuses requests of people who may not see everything.
func (r *Rights) guard(next http.Handler) http.Handler {
	return r.guardBy(next, func(w http.ResponseWriter, req *http.Request, namespaces []string) {
		if req.URL.Path == "/" {
			http.Redirect(w, req, jobsLink(namespaces), http.StatusSeeOther)
			return
		}
		forbid(w, errors.New("only jobs of your namespaces are shown to you"))
	})
}

// guardJob refuses requests for a job, or for the jobs of namespaces, that people may not see. alone answers people who may not see
// everything, and signed links.
func (r *Rights) guardJob(next, alone http.Handler) http.Handler {
	guarded := r.guardBy(next, func(w http.ResponseWriter, req *http.Request, namespaces []string) {
		for _, n := range namespacesOf(req) {
			if !slices.Contains(namespaces, cmp.Or(n, noNamespace)) {
				forbid(w, errors.New("only jobs of your namespaces are shown to you"))
				return
			}
		}
		alone.ServeHTTP(w, req)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !r.byLink(req) {
			guarded.ServeHTTP(w, req)
		} else if err := r.checkLink(req, time.Now()); err != nil {
			forbid(w, err)
		} else {
			alone.ServeHTTP(w, req)
		}
	})
}

// guardBy answers people with all rights by next, and people with namespaces by some.
func (r *Rights) guardBy(next http.Handler, some func(http.ResponseWriter, *http.Request, []string)) http.Handler {
	if r.Header == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		namespaces, err := r.namespaces(req)
		switch {
		case err != nil:
			forbid(w, err)
		case slices.Contains(namespaces, "*"):
			next.ServeHTTP(w, req)
		default:
			some(w, req, namespaces)
		}
	})
}

// client names who asks. Behind a reverse proxy, whose address is everybody's, a name is the rights and the address that the proxy saw:
// the last in X-Forwarded-For, because a client may send the others, and any signature.
func (r *Rights) client(req *http.Request) string {
	if r.Header == "" {
		address, _ := netip.ParseAddrPort(req.RemoteAddr) // what has no address is one client
		return address.Addr().Unmap().String()
	}
	forwarded := strings.Join(req.Header.Values("X-Forwarded-For"), ",")
	last := strings.TrimSpace(forwarded[strings.LastIndex(forwarded, ",")+1:])
	return req.Header.Get(r.Header) + " " + last
}

// forbid answers that a request has no right.
func forbid(w http.ResponseWriter, err error) {
	web.Secure(w.Header())
	http.Error(w, err.Error(), http.StatusForbidden)
}

// namespaces returns what the proxy set. Two headers are refused: a client may have sent the other.
func (r *Rights) namespaces(req *http.Request) (list []string, err error) {
	values := req.Header.Values(r.Header)
	if len(values) != 1 {
		return nil, fmt.Errorf("the reverse proxy has to set the header %s once; the request has %d", r.Header, len(values))
	}
	for one := range strings.SplitSeq(values[0], ",") {
		if one = strings.TrimSpace(one); one != "" {
			list = append(list, one)
		}
	}
	if list == nil {
		return nil, fmt.Errorf("the header %s has no namespace", r.Header)
	}
	return list, nil
}

// namespacesOf returns the namespaces that a request for a job, or for the jobs of namespaces, names: at least one.
func namespacesOf(req *http.Request) []string {
	name, _ := nameOf(req)
	if name.Name != "" {
		return []string{name.Namespace}
	}
	if list := req.URL.Query()["namespace"]; len(list) > 0 {
		return list
	}
	return []string{""}
}

// jobsLink returns the address of the jobs of namespaces.
func jobsLink(namespaces []string) string {
	q := url.Values{}
	for _, n := range namespaces {
		if n == noNamespace {
			n = ""
		}
		q.Add("namespace", n)
	}
	return "/job?" + q.Encode()
}

// byLink reports whether a request is by a signed link, which need not be valid.
func (r *Rights) byLink(req *http.Request) bool {
	return r.Header != "" && req.URL.Query().Has(signatureField)
}

// checkLink checks the signature and the end of a link to a job.
func (r *Rights) checkLink(req *http.Request, now time.Time) error {
	q := req.URL.Query()
	name, _ := nameOf(req)
	got, err := base64.RawURLEncoding.DecodeString(q.Get(signatureField))
	if len(r.Key) == 0 || err != nil || !hmac.Equal(got, r.sign(name, q.Get(untilField))) {
		return errors.New("the signature of the link is wrong")
	}
	until, err := strconv.ParseInt(q.Get(untilField), 10, 64)
	if end := time.Unix(until, 0); err != nil || !now.Before(end) {
		return fmt.Errorf("the link ended at %s", web.UTC(end))
	}
	return nil
}

// sign returns the signature of the link to a job. Encode is unique for each name.
func (r *Rights) sign(name fleet.JobName, until string) []byte {
	mac := hmac.New(sha256.New, r.Key)
	_, _ = fmt.Fprintf(mac, "%s&%s", jobQuery(name), url.Values{untilField: {until}}.Encode()) // a hash returns no error
	return mac.Sum(nil)
}

// signed is a link to a job that needs no other rights.
type signed struct {
	Link  string
	Until time.Time
}

// signedLink returns the link to a job for others; nil without a key, and for a request by a signed link.
func (r *Rights) signedLink(req *http.Request, name fleet.JobName) *signed {
	if r.Header == "" || len(r.Key) == 0 || r.byLink(req) {
		return nil
	}
	until := time.Now().Add(r.Lifetime)
	text := strconv.FormatInt(until.Unix(), 10)
	q := url.Values{untilField: {text}, signatureField: {base64.RawURLEncoding.EncodeToString(r.sign(name, text))}}
	return &signed{jobLink(name) + "&" + q.Encode(), until}
}

// query is jobQuery, with the signature of a request by a signed link.
func (r *Rights) query(req *http.Request, name fleet.JobName) string {
	q := jobQuery(name)
	if r.byLink(req) {
		from := req.URL.Query()
		q += "&" + url.Values{untilField: {from.Get(untilField)}, signatureField: {from.Get(signatureField)}}.Encode()
	}
	return q
}
