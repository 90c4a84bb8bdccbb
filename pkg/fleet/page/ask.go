// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/fleet/matrix"
	"github.com/accelscope/accelscope/pkg/web"
)

// pages answers requests in two steps: it asks Prometheus and sensors, which may take long, and then makes the answer, with the limits
// of package api. So what is not answered yet delays no other request.
type pages struct {
	Options
	state atomic.Pointer[fleet.State] // the last one
}

// asked is what was asked for one request.
type asked struct {
	found    []fleet.Found
	job      bool // the job was asked for
	report   *fleet.JobReport
	matrix   *matrix.Matrix
	problems []string
}

// unanswered reports whether nothing that was asked for is known.
func (a *asked) unanswered() bool { return a.found == nil && a.report == nil && len(a.problems) > 0 }

// question asks for what the answer to a request needs beyond the state. It is nil if it needs no more.
type question func(context.Context, *asked)

// answerFunc makes an answer.
type answerFunc func(w http.ResponseWriter, r *http.Request, s *fleet.State, a *asked)

// visit is what the second step needs of the first one.
type visit struct {
	asked
	leave func()
}

type visitKey struct{}

// handler returns a handler of one path.
func (f *pages) handler(kept func(func(http.ResponseWriter, *http.Request, *api.Known)) http.Handler,
	ask func(*http.Request, *fleet.State) question, answer answerFunc,
) http.Handler {
	made := kept(func(w http.ResponseWriter, r *http.Request, _ *api.Known) {
		v := r.Context().Value(visitKey{}).(*visit)
		defer v.leave() // before the answer is sent, which takes as long as the client likes
		answer(w, r, f.state.Load(), &v.asked)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := f.Reader.Read()
		f.state.Store(s)
		v := &visit{leave: func() {}}
		if question := ask(r, s); question != nil {
			leave, err := f.Reader.Enter(r.Context(), f.Rights.client(r))
			if err != nil {
				w.Header().Set("Retry-After", "1")
				web.Refuse(w, err)
				return
			}
			v.leave = sync.OnceFunc(leave)
			defer v.leave()
			question(r.Context(), &v.asked)
		}
		made.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), visitKey{}, v)))
	})
}

// nothing is asked for.
func nothing(*http.Request, *fleet.State) question { return nil }

// askSearch asks for the text of a request.
func (f *pages) askSearch(r *http.Request, _ *fleet.State) question {
	text := searched(r)
	if len(text) < fleet.MinText {
		return nil
	}
	return func(ctx context.Context, a *asked) { a.found, a.problems = f.Reader.Search(ctx, text) }
}

// askJob asks for the job of a request, and sensors of its members for their peers. Nothing is asked for a name that no job has, or
// that several jobs have.
func (f *pages) askJob(r *http.Request, s *fleet.State) question {
	jobs := jobsOf(r, s)
	if len(jobs) != 1 {
		return nil
	}
	name := jobs[0].JobName
	return func(ctx context.Context, a *asked) {
		a.job = true
		a.report, a.problems = f.Reader.Job(ctx, s, name)
		if f.Matrix != nil && a.report != nil {
			a.matrix = f.Matrix.Job(name, a.report.Members)
			a.report = a.report.WithSaid(&a.matrix.Said)
		}
	}
}
