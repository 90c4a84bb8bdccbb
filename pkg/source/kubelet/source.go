// SPDX-License-Identifier: Apache-2.0

// Package kubelet requests from the node's kubelet the pods that it runs, their allocated devices and their use of
// storage.
//
// Read sends four requests at once. Each may fail alone:
//
//   - pod-resources: PodResources v1 List, gRPC over the kubelet's socket
//   - allocatable: PodResources v1 GetAllocatableResources, over the same socket
//   - pods: GET /pods, HTTPS
//   - summary: GET /stats/summary, HTTPS
//
// The first two cost a connection and a call each, the others a request on a kept connection and reading the token and
// CA files. The socket is dialed by its path each time: a restarted kubelet creates another socket, and a hanging
// kubelet may still have the old socket open. PodResources v1 has no watch (k8s.io/kubelet v0.37), so a new pod is
// known after the next Read.
//
// The answers are decoded pod by pod, so that memory is needed only for the result and the largest pod.
//
// The node's specifications of the Container Device Interface (CDI), which the drivers of claims write, resolve devices
// of resource claims to device nodes. They are read while a claim has CDI devices, and each file again only after a
// change.
//
// Authors of pods write labels and annotations: they are used as names, never as proof. Allocations cannot be forged.
package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// Options of a Source.
type Options struct {
	// Socket is the PodResources socket; default /var/lib/kubelet/pod-resources/kubelet.sock. Mount its directory into
	// a container, not the socket itself. Its path is below Root, where symbolic links are followed; default /.
	Socket, Root string
	// URL is the kubelet's HTTPS API; default https://NodeIP:10250 if NodeIP is set and TokenFile exists, else no
	// request is sent over HTTPS.
	URL    string
	NodeIP string
	// TokenFile holds a bearer token. It is read each time because tokens rotate.
	TokenFile string
	// CAFile holds the CA certificates (PEM) for the kubelet's certificate; default the system's.
	CAFile string
	// CertificateFile holds the kubelet's own certificate (PEM), such as a self-signed certificate. Only this
	// certificate is accepted, whatever its name. The file is read each time.
	CertificateFile string
	Insecure        bool // do not check the kubelet's certificate
	SendToken       bool // send the token nevertheless
	// Labels lists the labels and annotations of pods to return.
	Labels []string
	// CDI are the directories of CDI specifications, from the lowest priority on; default /etc/cdi and /var/run/cdi.
	CDI    []CDIDir
	Logger *zap.Logger
	Now    func() time.Time // default time.Now
}

// keep is how long the last answer to a failing request is returned: longer than a restart of the kubelet takes, and no
// longer than the names of removed containers.
const keep = 5 * time.Minute

// A Source sends requests to a kubelet. Read must not be called concurrently.
type Source struct {
	parts []*part
	https *client // nil without a URL
	cdi   *specifications
	now   func() time.Time
}

type part struct {
	name string
	// read returns nil without a result. A result with an error is valid but incomplete.
	read  func(context.Context) (*facts, error)
	facts *facts
	at    time.Time // time of facts; zero before the first answer
	err   error
}

type facts struct {
	model.Snapshot
	finished  map[podName]struct{} // pods that have ended
	unhealthy map[containerDevice]struct{}
	ids       []string // of the devices of Allocations, in their order, as in containerDevice
}

type podName struct{ namespace, name string }

// New returns a Source. It checks only that TokenFile exists; an invalid URL is an error.
func New(o Options) (*Source, error) {
	s := &Source{now: o.Now, cdi: newSpecifications(o.CDI)}
	if s.now == nil {
		s.now = time.Now
	}
	var err error
	if s.https, err = newClient(o, cmp.Or(o.Logger, zap.NewNop())); err != nil {
		return nil, err
	}
	socket := podResources{cmp.Or(o.Root, "/"), cmp.Or(o.Socket, "/var/lib/kubelet/pod-resources/kubelet.sock")}
	pods := func(context.Context) (*facts, error) { return nil, errNoURL }
	summary := pods
	if s.https != nil {
		labels := slices.Clone(o.Labels)
		pods = func(ctx context.Context) (*facts, error) { return s.https.pods(ctx, labels) }
		summary = s.https.summary
	}
	s.parts = []*part{
		{name: "pod-resources", read: func(ctx context.Context) (*facts, error) {
			s.cdi.begin()
			return socket.list(ctx, s.cdi.nodes)
		}},
		{name: "allocatable", read: socket.allocatable},
		{name: "pods", read: pods},
		{name: "summary", read: summary},
	}
	return s, nil
}

// Name is "kubelet".
func (s *Source) Name() string { return "kubelet" }

// Close closes the connections.
func (s *Source) Close() error {
	if s.https != nil {
		s.https.close()
	}
	return nil
}

// Read sends the requests and returns Pods, Containers, Allocations, Allocatable, PodStorage, NodeStorage, and a
// DeviceState for each request, and for CDI if a claim has CDI devices. It returns before the deadline of ctx.
//
// A request that fails drops only its own result: its last answer is returned for 5 minutes, with its age in the reason
// of its state, and is dropped after that (nil). The error contains the failures. Without a failure there is an error
// only if no request was answered: ErrAbsent without a socket and a URL, ErrUnsupported if the kubelet does not support
// the requests. A socket that disappears is a failure.
func (s *Source) Read(ctx context.Context) (model.Snapshot, error) {
	answers := make([]*facts, len(s.parts))
	var wg safely.Group
	for i, p := range s.parts {
		wg.Go(func() { answers[i], p.err = p.read(ctx) })
	}
	wg.Wait()

	var out model.Snapshot
	var finished map[podName]struct{}
	var unhealthy map[containerDevice]struct{}
	var ids []string
	now := s.now()
	for i, p := range s.parts {
		p.update(answers[i], now)
		if p.facts == nil {
			continue
		}
		out.Merge(&p.facts.Snapshot)
		if p.facts.unhealthy != nil {
			unhealthy = p.facts.unhealthy
		}
		if p.facts.ids != nil {
			ids = p.facts.ids
		}
		if answers[i] != nil && p.facts.finished != nil { // an old answer may lack new pods
			finished = p.facts.finished
		}
	}
	out.Allocations = running(withHealth(out.Allocations, ids, unhealthy), finished)
	err := s.verdict()
	if !errors.Is(err, model.ErrAbsent) { // without a kubelet there are no states
		out.DeviceStates = s.states(now)
	}
	return out, err
}

// update stores the answer, or keeps the last answer until it is too old.
func (p *part) update(answer *facts, now time.Time) {
	if answer != nil {
		p.facts, p.at = answer, now
		return
	}
	if now.Sub(p.at) > keep {
		p.facts = nil
	}
	if !p.at.IsZero() && errors.Is(p.err, model.ErrAbsent) {
		// Not %w: it existed before, so this is a failure.
		p.err = fmt.Errorf("the socket disappeared: %v; is the kubelet running?", p.err) //nolint:errorlint // see above
	}
}

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
		failed = missing[i : i+1] // the kubelet exists
	}
	if failed == nil {
		return nil
	}
	return fmt.Errorf("kubelet: %w", errors.Join(failed...))
}

// absent joins the distinct reasons of all parts.
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
				state.Reason += fmt.Sprintf(" (the last answer is %s old)", age.Round(time.Second))
			}
		}
		states = append(states, state)
	}
	if state, ok := s.cdi.state(); ok {
		state.Source = s.Name()
		states = append(states, state)
	}
	return states
}

// running drops the allocations of ended pods: kubelets before 1.34 list them until the pods are deleted
// (kubernetes/kubernetes#119423), although their devices may be allocated to another pod.
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

func short(text string) string {
	const most = 256
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "�")
}
