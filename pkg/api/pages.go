// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxAnswers limits the answers that are made at once: those of a large node have several megabytes.
const maxAnswers = 4

// maxWait is the time that a request waits for others.
const maxWait = 2 * time.Second

// bodyTimeout is the time that a client has to read an answer.
const bodyTimeout = 10 * time.Second

var errBusy = errors.New("too many answers are being made, try again")

// Slots limit the answers that are made at once by all handlers that share them.
type Slots chan struct{}

// NewSlots returns slots for maxAnswers answers.
func NewSlots() Slots { return make(Slots, maxAnswers) }

// answerFunc answers a request from the facts of a refresh.
type answerFunc func(w http.ResponseWriter, r *http.Request, known *Known)

// pages makes the answers of all requests, and keeps those of requests without a query until the next refresh.
type pages struct {
	facts   Facts
	slots   Slots
	maxWait time.Duration

	making sync.Mutex // one kept page is made at a time
	mu     sync.Mutex
	kept   map[string]*page // by path
}

func newPages(facts Facts, slots Slots) *pages {
	return &pages{facts: facts, slots: slots, maxWait: maxWait, kept: map[string]*page{}}
}

// handler returns a handler of one path. It answers with status 500 if a refresh failed, 503 if too many answers are being made,
// and 304 if the client has the answer.
func (p *pages) handler(refuse func(http.ResponseWriter, error), answer answerFunc) http.Handler {
	return reads(refuse, func(w http.ResponseWriter, r *http.Request) {
		known := p.facts()
		if known.Err != nil {
			refuse(w, statusError{known.Err, http.StatusInternalServerError})
			return
		}
		made := p.keptAt(r, known.At)
		if made == nil {
			if !p.enter(r.Context()) {
				w.Header().Set("Retry-After", "1")
				refuse(w, errBusy)
				return
			}
			made = p.make(r, &known, answer)
		}
		made.send(w, r)
	})
}

// enter takes a slot, and reports whether there was one in time.
func (p *pages) enter(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, p.maxWait)
	defer cancel()
	select {
	case p.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// keptAt returns the page that was made of a refresh, or nil.
func (p *pages) keptAt(r *http.Request, at time.Time) *page {
	p.mu.Lock()
	defer p.mu.Unlock()
	if made := p.kept[r.URL.Path]; made != nil && r.URL.RawQuery == "" && made.at.Equal(at) {
		return made
	}
	return nil
}

// make makes a page in a slot that was taken, and gives it back.
func (p *pages) make(r *http.Request, known *Known, answer answerFunc) *page {
	defer func() { <-p.slots }()
	if r.URL.RawQuery != "" || known.At.IsZero() {
		return newPage(r, known, answer)
	}
	p.making.Lock()
	defer p.making.Unlock()
	if made := p.keptAt(r, known.At); made != nil {
		return made
	}
	made := newPage(r, known, answer)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept[r.URL.Path] = made
	return made
}

// page is a complete answer. It is the http.ResponseWriter that records it, too.
type page struct {
	at     time.Time
	status int
	header http.Header
	body   bytes.Buffer
	tag    string
}

func newPage(r *http.Request, known *Known, answer answerFunc) *page {
	made := &page{at: known.At, status: http.StatusOK, header: http.Header{}}
	answer(made, r, known)
	sum := fnv.New64a()
	_, _ = sum.Write(made.body.Bytes())
	made.tag = fmt.Sprintf("\"%016x\"", sum.Sum64())
	return made
}

func (p *page) Header() http.Header               { return p.header }
func (p *page) WriteHeader(status int)            { p.status = status }
func (p *page) Write(b []byte) (n int, err error) { return p.body.Write(b) }

// send sends the page, or nothing if the client has it.
func (p *page) send(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	if p.status == http.StatusOK {
		h.Set("ETag", p.tag)
		if hasTag(r.Header.Get("If-None-Match"), p.tag) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	maps.Copy(h, p.header)
	h.Set("Content-Length", strconv.Itoa(p.body.Len()))
	// A client that does not read must not keep the connection.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(bodyTimeout))
	w.WriteHeader(p.status)
	_, _ = w.Write(p.body.Bytes()) // the client may have gone
}

// hasTag reports whether an If-None-Match names a tag.
func hasTag(header, tag string) bool {
	for one := range strings.SplitSeq(header, ",") {
		if one = strings.TrimPrefix(strings.TrimSpace(one), "W/"); one == tag || one == "*" {
			return true
		}
	}
	return false
}
