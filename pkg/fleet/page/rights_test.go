// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"encoding/base64"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/fleet"
)

const header = "X-Namespaces"

// closed is the options of pages behind a proxy, with two jobs of research and one of no namespace.
func closed(lifetime time.Duration) Options {
	s := crowd(2)
	s.Tried = s.At // answers are kept
	s.Jobs = append(s.Jobs, fleet.Job{JobName: fleet.JobName{Kind: "slurm", Name: "42"}}, fleet.Job{JobName: fleet.JobName{Namespace: "vision", Kind: "Job", Name: "sam"}})
	return Options{
		Reader: &fakeFleet{state: s, report: waiting()}, Matrix: &fakeMatrix{matrix: connected(2)},
		Rights: Rights{Header: header, Key: bytes.Repeat([]byte("k"), MinKey), Lifetime: lifetime},
	}
}

// ask asks for a page with headers.
func ask(h http.Handler, target string, namespaces ...string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, target, nil)
	for _, n := range namespaces {
		r.Header.Add(header, n)
	}
	h.ServeHTTP(w, r)
	return w
}

// TestClosed: nothing is shown without the header, but style sheets and the description of the API, which have no figures.
func TestClosed(t *testing.T) {
	o := closed(time.Hour)
	h := site(o)
	public := 0
	for pattern := range Handlers(o) {
		_, path, _ := strings.Cut(pattern, " ")
		path = strings.NewReplacer("{$}", "", "{namespace}", "research", "{name}", "llama-1").Replace(path)
		w := ask(h, path)
		if w.Code == http.StatusOK && (strings.HasPrefix(path, "/assets/") || path == descriptionPath) {
			public++
		} else if w.Code != http.StatusForbidden || strings.Contains(w.Body.String(), "llama") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		if w := ask(h, path, "*"); w.Code == http.StatusForbidden {
			t.Errorf("%s with all rights: %d %s", path, w.Code, w.Body)
		}
	}
	if public < 2 {
		t.Errorf("%d public answers", public)
	}
}

// TestNamespaces: people see the jobs of their namespaces.
func TestNamespaces(t *testing.T) {
	h := site(closed(time.Hour))
	const (
		page = "/job/research/llama-1"
		api  = jobPath + "?namespace=research&name=llama-1&kind=JobSet"
	)
	for _, c := range []struct {
		target     string
		namespaces []string
		status     int
	}{
		{page, []string{"research"}, http.StatusOK},
		{page, []string{"vision, research"}, http.StatusOK},
		{"/job/vision/sam", []string{"vision"}, http.StatusOK},
		{page, []string{"vision"}, http.StatusForbidden},
		{page, []string{"research-2,resear"}, http.StatusForbidden},
		{page, []string{"RESEARCH"}, http.StatusForbidden},
		{page, []string{""}, http.StatusForbidden},
		{page, []string{" , "}, http.StatusForbidden},
		{page, []string{"research", "vision"}, http.StatusForbidden},
		{page, []string{"*", "vision"}, http.StatusForbidden},
		{page + "?namespace=vision", []string{"vision"}, http.StatusForbidden},
		{"/job/research/none", []string{"vision"}, http.StatusForbidden},
		{"/job/-/42", []string{"-"}, http.StatusOK},
		{"/job/-/42", []string{"research"}, http.StatusForbidden},
		{"/job?name=42&kind=slurm", []string{"-"}, http.StatusOK},
		{"/job?name=42&kind=slurm", []string{"research"}, http.StatusForbidden},
		{api, []string{"research"}, http.StatusOK},
		{api, []string{"vision"}, http.StatusForbidden},
		{jobPath + "?namespace=vision&namespace=research&name=sam&kind=Job", []string{"research"}, http.StatusForbidden},
		{strings.Replace(api, jobPath, matrixPath, 1), []string{"research"}, http.StatusOK},
		{strings.Replace(api, jobPath, matrixPath, 1), []string{"vision"}, http.StatusForbidden},
		{"/job?namespace=research", []string{"research"}, http.StatusOK},
		{"/job?namespace=research&namespace=vision", []string{"research"}, http.StatusForbidden},
		{"/job", []string{"research"}, http.StatusForbidden},
		{"/", []string{"research"}, http.StatusSeeOther},
		{"/?q=llama", []string{"research"}, http.StatusSeeOther},
		{"/node?name=gpu0000.cluster.example:9847", []string{"research"}, http.StatusForbidden},
		{statePath, []string{"research"}, http.StatusForbidden},
	} {
		w := ask(h, c.target, c.namespaces...)
		if w.Code != c.status {
			t.Errorf("%s of %q: %d, want %d: %.200s", c.target, c.namespaces, w.Code, c.status, w.Body)
		}
		if strings.Contains(c.target, "sam") && strings.Contains(w.Body.String(), "research") {
			t.Errorf("%s shows another job", c.target)
		}
	}
	for namespaces, shown := range map[string]bool{"*": true, "research": false} { // also of an answer that is kept
		if body := ask(h, page, namespaces).Body.String(); strings.Contains(body, `href="/node`) != shown || !strings.Contains(body, `<a href="/">Fleet`) {
			t.Errorf("links to nodes for %s, want %v", namespaces, shown)
		}
	}
	to := ask(h, "/", "research, -").Header().Get("Location")
	list := ask(h, to, "research, -").Body.String()
	if !strings.Contains(list, `href="/job/research/llama-1?kind=JobSet"`) || !strings.Contains(list, `href="/job/-/42?kind=slurm"`) || strings.Contains(list, "sam") {
		t.Errorf("the list at %s has not the jobs of the namespaces:\n%s", to, list)
	}
}

// TestClients: behind a proxy, clients differ by their rights and by what the proxy added.
func TestClients(t *testing.T) {
	name := func(r Rights, target, address string, headers ...string) string {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
		req.RemoteAddr = address
		for i := 0; i < len(headers); i += 2 {
			req.Header.Add(headers[i], headers[i+1])
		}
		return r.client(req)
	}
	const forwarded, proxy = "X-Forwarded-For", "10.0.0.1:4000"
	header := Rights{Header: "X-Namespaces"}
	ml := name(header, "/job", proxy, "X-Namespaces", "ml", forwarded, "192.0.2.1")
	for _, c := range []struct {
		what, name string
		same       bool
	}{
		{"sends an address", name(header, "/job", proxy, "X-Namespaces", "ml", forwarded, "198.51.100.7, 192.0.2.1"), true},
		{"sends a header of its own", name(header, "/job", proxy, "X-Namespaces", "ml", forwarded, "198.51.100.7", forwarded, "192.0.2.1"), true},
		{"has another address", name(header, "/job", proxy, "X-Namespaces", "ml", forwarded, "192.0.2.2"), false},
		{"has other rights", name(header, "/job", proxy, "X-Namespaces", "vision", forwarded, "192.0.2.1"), false},
		{"has a link", name(header, "/job?signature=AAAA", proxy, forwarded, "192.0.2.1"), false},
		{"sends a signature", name(header, "/?q=x&signature=AAAA", proxy, "X-Namespaces", "ml", forwarded, "192.0.2.1"), true},
	} {
		if (c.name == ml) != c.same {
			t.Errorf("who %s is the same client: %v, want %v", c.what, !c.same, c.same)
		}
	}
	if a, b := name(Rights{}, "/", "10.0.0.1:1", forwarded, "x"), name(Rights{}, "/", "[::ffff:10.0.0.1]:2"); a != b {
		t.Errorf("without a proxy: %q and %q", a, b)
	}
}

// TestSignedLink: a link shows one job for a time, and nothing else.
func TestSignedLink(t *testing.T) {
	o := closed(time.Hour)
	h := site(o)
	link := linkIn(t, ask(h, "/job/research/llama-1?kind=JobSet", "research").Body.String())
	w := ask(h, link)
	body := w.Body.String()
	if w.Code != http.StatusOK || !strings.Contains(body, "The job waits for ml/b/main on n2") {
		t.Fatalf("%s: %d %s", link, w.Code, body)
	}
	for _, other := range []string{`href="/node`, `<a href="/">Fleet`, "people without rights", `href="/job/`} {
		if strings.Contains(body, other) {
			t.Errorf("the page of the link has %s", other)
		}
	}
	for _, path := range []string{jobPath, matrixPath} {
		_, after, ok := strings.Cut(body, `href="`+path)
		query, _, _ := strings.Cut(after, `"`)
		if w := ask(h, path+html.UnescapeString(query)); !ok || w.Code != http.StatusOK {
			t.Errorf("%s of the page: %d %s", path, w.Code, w.Body)
		}
	}
	u, err := url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	changed := func(path string, pairs ...string) string {
		q := u.Query()
		for i := 0; i < len(pairs); i += 2 {
			q.Set(pairs[i], pairs[i+1])
		}
		return path + "?" + q.Encode()
	}
	without := u.Query()
	without.Del(untilField)
	for _, target := range []string{
		changed("/job/research/llama-0"), changed("/job/vision/llama-1"), changed(u.Path, "kind", "Job"), changed(u.Path, "kind", ""),
		changed(u.Path, untilField, "99999999999"), changed(u.Path, signatureField, ""), changed(u.Path, signatureField, "AAAA"),
		changed(u.Path, signatureField, u.Query().Get(signatureField)+"A"), u.Path + "?" + without.Encode(),
		changed("/", "namespace", "research", "name", "llama-1"), changed("/node", "name", "gpu0000.cluster.example:9847"), changed("/job"),
		changed(statePath, "namespace", "research", "name", "llama-1"),
		changed(jobPath, "namespace", "vision", "name", "sam", "kind", "Job"),
	} {
		if w := ask(h, target); w.Code != http.StatusForbidden {
			t.Errorf("%s: %d", target, w.Code)
		}
	}
	other := o
	other.Rights.Key = bytes.Repeat([]byte("x"), MinKey)
	none := o
	none.Rights.Key = nil
	for name, o := range map[string]Options{"another key": other, "no key": none} {
		if w := ask(site(o), link); w.Code != http.StatusForbidden {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
	text := u.Query().Get(untilField) // who knows that there is no key can sign
	unkeyed := base64.RawURLEncoding.EncodeToString(none.Rights.sign(fleet.JobName{Namespace: "research", Kind: "JobSet", Name: "llama-1"}, text))
	if w := ask(site(none), changed(u.Path, signatureField, unkeyed)); w.Code != http.StatusForbidden {
		t.Errorf("a link signed without a key: %d", w.Code)
	}
	if body := ask(site(none), "/job/research/llama-1", "*").Body.String(); strings.Contains(body, signatureField) {
		t.Error("a link is signed without a key")
	}
	ended := site(closed(-2 * time.Hour))
	link = linkIn(t, ask(ended, "/job/research/llama-1", "*").Body.String())
	if w := ask(ended, link); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "the link ended at") {
		t.Errorf("an ended link: %d %s", w.Code, w.Body)
	}
}

// linkIn returns the signed link of a page.
func linkIn(t *testing.T, body string) string {
	t.Helper()
	m := regexp.MustCompile(`href="([^"]*signature=[^"]*)">link for people without rights`).FindStringSubmatch(body)
	if m == nil {
		t.Fatal("the page has no link:\n", body)
	}
	return html.UnescapeString(m[1])
}

// TestOpen: without a header everybody sees everything, and a signature has no meaning.
func TestOpen(t *testing.T) {
	o := closed(time.Hour)
	o.Rights.Header = ""
	h := site(o)
	for _, target := range []string{"/", "/job/research/llama-1?signature=x", statePath} {
		if w := ask(h, target); w.Code != http.StatusOK || strings.Contains(w.Body.String(), "people without rights") {
			t.Errorf("%s: %d", target, w.Code)
		}
	}
	if !strings.Contains(ask(h, "/job/research/llama-1?signature=x").Body.String(), `<a href="/">Fleet`) {
		t.Error("the page of a job lacks its links")
	}
}
