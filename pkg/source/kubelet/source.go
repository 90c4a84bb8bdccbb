// SPDX-License-Identifier: Apache-2.0

// Package kubelet asks the kubelet of this node which pods it runs, which
// devices it gave them and how much storage they use.
//
// Four questions are asked at once, and each of them fails alone (Read):
//
//	pod-resources  PodResources v1 List, gRPC over the kubelet's socket
//	allocatable    PodResources v1 GetAllocatableResources, the same
//	pods           GET /pods, HTTPS
//	summary        GET /stats/summary, HTTPS
//
// A read costs a connection and a call for each of the first two, a request on a
// kept connection and a look at the token and CA files for the others. The socket
// is dialed anew by its path each time: a kubelet that was restarted has put
// another one there, and one that hangs may still hold the old one. PodResources
// v1 has no watch (k8s.io/kubelet v0.37), and its Get tells nothing that List does
// not, so a new pod is known after the next Read.
//
// The answers are decoded one pod at a time, so that the memory they take is
// that of the facts and of the largest pod, whatever the answer weighs.
//
// What pods say of themselves (labels, annotations) is written by who may edit
// them: it names things and proves nothing. Allocations cannot be forged.
package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

// Options of a Source.
type Options struct {
	// Socket is that of PodResources; /var/lib/kubelet/pod-resources/kubelet.sock.
	// Its directory, not the socket itself, is to be mounted into a container.
	Socket string
	// URL is the kubelet's HTTPS API. Empty: https://NodeIP:10250 where NodeIP is
	// given and TokenFile exists; without these nothing is asked over HTTPS.
	URL    string
	NodeIP string
	// TokenFile holds a bearer token and is read each time, for tokens rotate.
	TokenFile string
	// CAFile holds the certificates (PEM) that the kubelet's must be signed by.
	// Empty: the authorities of the system.
	CAFile   string
	Insecure bool // the kubelet's certificate is not checked
	// Labels are the labels and annotations of pods to be told; no others are.
	Labels []string
	Logger *zap.Logger
	Now    func() time.Time // time.Now
}

// keep is how long the facts of a question that fails are told on: longer than
// a restart of the kubelet takes, and no longer than the names of the dead.
const keep = 5 * time.Minute

// A Source asks one kubelet. Read must not be called twice at a time.
type Source struct {
	parts []*part
	https *client // nil without a URL
	now   func() time.Time
}

// part is one question to the kubelet and what is known of the answer.
type part struct {
	name string
	// read returns nil when nothing can be said. Facts that come with an error
	// are good, and not all.
	read  func(context.Context) (*facts, error)
	facts *facts
	at    time.Time // of the last facts; zero when there never were any
	err   error
}

// facts are what an answer says.
type facts struct {
	model.Snapshot
	finished map[podName]struct{} // pods that will not run again
}

type podName struct{ namespace, name string }

// New makes a source. It reads nothing but TokenFile's existence; the error says
// that the URL cannot be one.
func New(o Options) (*Source, error) {
	log := o.Logger
	if log == nil {
		log = zap.NewNop()
	}
	s := &Source{now: o.Now}
	if s.now == nil {
		s.now = time.Now
	}
	var err error
	if s.https, err = newClient(o, log); err != nil {
		return nil, err
	}
	socket := podResources(cmp.Or(o.Socket, "/var/lib/kubelet/pod-resources/kubelet.sock"))
	pods := func(context.Context) (*facts, error) { return nil, errNoURL }
	summary := pods
	if s.https != nil {
		labels := slices.Clone(o.Labels)
		pods = func(ctx context.Context) (*facts, error) { return s.https.pods(ctx, labels) }
		summary = s.https.summary
	}
	s.parts = []*part{
		{name: "pod-resources", read: socket.list},
		{name: "allocatable", read: socket.allocatable},
		{name: "pods", read: pods},
		{name: "summary", read: summary},
	}
	return s, nil
}

// Name is "kubelet".
func (s *Source) Name() string { return "kubelet" }

// Close drops the connections.
func (s *Source) Close() error {
	if s.https != nil {
		s.https.close()
	}
	return nil
}

// Read asks the kubelet and returns Pods, Containers, Allocations, Allocatable,
// PodStorage, NodeStorage, and a DeviceState for each of the four questions. It
// takes no longer than ctx allows.
//
// A question that fails costs its own facts only: its last good ones are told
// for 5 minutes more, their age is in the reason of its state, and after that
// they are gone (nil). The error holds the failures. Without any there is one
// only if no question was answered: ErrAbsent when there is neither a socket nor
// a URL, ErrUnsupported when the kubelet does not know the questions. A socket
// that was there before and is not now is a failure.
func (s *Source) Read(ctx context.Context) (model.Snapshot, error) {
	answers := make([]*facts, len(s.parts))
	var wg sync.WaitGroup
	for i, p := range s.parts {
		wg.Go(func() { answers[i], p.err = p.read(ctx) })
	}
	wg.Wait()

	var out model.Snapshot
	var finished map[podName]struct{}
	now := s.now()
	for i, p := range s.parts {
		p.update(answers[i], now)
		if p.facts == nil {
			continue
		}
		out.Merge(&p.facts.Snapshot)
		if answers[i] != nil && p.facts.finished != nil { // an old answer does not know who is new
			finished = p.facts.finished
		}
	}
	out.Allocations = running(out.Allocations, finished)
	err := s.verdict()
	if !errors.Is(err, model.ErrAbsent) { // else there is nothing to have states
		out.DeviceStates = s.states(now)
	}
	return out, err
}

// update takes the answer, or lets the last one stand while it is not too old.
func (p *part) update(answer *facts, now time.Time) {
	if answer != nil {
		p.facts, p.at = answer, now
		return
	}
	if now.Sub(p.at) > keep {
		p.facts = nil
	}
	if !p.at.IsZero() && errors.Is(p.err, model.ErrAbsent) {
		// Not %w: it was there, so this is a failure.
		p.err = fmt.Errorf("it is gone: %v; is the kubelet running?", p.err) //nolint:errorlint // see above
	}
}

// verdict is the error of a Read.
func (s *Source) verdict() error {
	var failed, missing []error
	for _, p := range s.parts {
		switch {
		case p.err == nil:
		case errors.Is(p.err, model.ErrAbsent), errors.Is(p.err, model.ErrUnsupported):
			missing = append(missing, fmt.Errorf("%s: %w", p.name, p.err))
		default:
			failed = append(failed, fmt.Errorf("%s: %w", p.name, p.err))
		}
	}
	if failed == nil && len(missing) == len(s.parts) {
		i := slices.IndexFunc(missing, func(err error) bool { return !errors.Is(err, model.ErrAbsent) })
		if i < 0 {
			return s.absent()
		}
		failed = missing[i : i+1] // something is there
	}
	if failed == nil {
		return nil
	}
	return fmt.Errorf("kubelet: %w", errors.Join(failed...))
}

// absent says once what all parts lack, two of them each.
func (s *Source) absent() error {
	reasons := make([]string, 0, len(s.parts))
	for _, p := range s.parts {
		reasons = append(reasons, strings.TrimSuffix(p.err.Error(), ": "+model.ErrAbsent.Error()))
	}
	return fmt.Errorf("no kubelet: %s: %w", strings.Join(slices.Compact(reasons), "; "), model.ErrAbsent)
}

func (s *Source) states(now time.Time) []model.DeviceState {
	states := make([]model.DeviceState, 0, len(s.parts))
	for _, p := range s.parts {
		state := model.DeviceState{Source: s.Name(), Device: p.name, State: model.StateOK}
		switch {
		case p.err == nil:
		case errors.Is(p.err, model.ErrAbsent):
			state.State = model.StateAbsent
		case errors.Is(p.err, model.ErrUnsupported):
			state.State = model.StateUnsupported
		default:
			state.State = model.StateFailed
		}
		if p.err != nil {
			state.Reason = p.err.Error()
			if age := now.Sub(p.at); p.facts != nil && age > 0 {
				state.Reason += fmt.Sprintf(" (its facts are %s old)", age.Round(time.Second))
			}
		}
		states = append(states, state)
	}
	return states
}

// running drops what was given to pods that have ended: kubelets before 1.34
// list them until they are deleted (kubernetes/kubernetes#119423), though their
// devices may be another's by now.
func running(all []model.Allocation, finished map[podName]struct{}) []model.Allocation {
	ended := func(a model.Allocation) bool {
		_, ok := finished[podName{a.Namespace, a.Pod}]
		return ok
	}
	if len(finished) == 0 || !slices.ContainsFunc(all, ended) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), ended)
}

// short bounds what a server says of its failure.
func short(text string) string {
	const most = 256
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "�")
}
