// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/fleet"
)

// Limits of a sensor's answers. A list of 32,768 queue pairs has eleven megabytes.
const (
	maxHCAs      = 4 << 20
	maxPeers     = 16 << 20
	maxPeer      = 64 << 10 // one queue pair, with the decoder's read-ahead
	maxError     = 4 << 10
	maxAddresses = 8192
	maxHeld      = 256 << 10 // addresses of all nodes together: some 25 MB
	maxProblem   = 200
	maxWait      = 1e9 // seconds
)

var (
	errTooLarge  = errors.New("the answer is too large")
	errNotSensor = errors.New("this is not the answer of a sensor")
)

type owner struct{ workload, containerID string }

// subnet is the GID prefix of an InfiniBand subnet; 0: unknown.
type subnet uint64

// remote is the address of a remote end: a GID, or a LID in a subnet, or empty.
type remote struct {
	gid    netip.Addr
	lid    uint32
	subnet subnet
}

func (r remote) String() string {
	if r.gid.IsValid() {
		return r.gid.String()
	}
	return fmt.Sprint("LID ", r.lid)
}

type portOf struct {
	device string
	port   int
}

// ends are the queue pairs to a remote end, and their waits for receives in seconds: ended waits, and the longest present wait.
type ends struct {
	pairs          int
	waited, oldest float64
}

// add adds more queue pairs.
func (e ends) add(more ends) ends {
	return ends{e.pairs + more.pairs, e.waited + more.waited, max(e.oldest, more.oldest)}
}

type answer struct {
	Node
	addresses  map[remote]bool // of the ports
	subnets    map[portOf]subnet
	remotes    map[remote]ends // the queue pairs of the job
	held       int             // part of Reader.held
	verdicts   []fleet.Verdict
	omitted    int  // verdicts
	launches   bool // are known
	faults     []fleet.Fault
	moreFaults int
	logged     bool // the faults are known
	ranks      []rank
	clock      time.Duration // the largest error of the node's clock; 0: unknown
}

// sensor asks a node's sensor for its addresses, the owners' queue pairs, and its verdicts on the owners.
func (r *Reader) sensor(ctx context.Context, name string, of map[owner]bool) answer {
	a := answer{Node: Node{Name: name}, addresses: map[remote]bool{}, subnets: map[portOf]subnet{}, remotes: map[remote]ends{}}
	base := fleet.NodeURL(r.url, name)
	if base == "" {
		a.Problem = "not asked: the label instance is neither a host nor host:port"
		return a
	}
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		a.Problem = "not asked: others took all of the time"
		return a
	}
	ctx, cancel := context.WithTimeout(ctx, r.nodeTimeout)
	defer cancel()
	var problems []string
	fail := func(err error) {
		switch {
		case err == nil:
		case ctx.Err() != nil: // the error may come from a connection that was closed for this reason
			problems = append(problems, "no answer in time")
		default:
			problems = append(problems, problem(err))
		}
	}
	err := r.get(ctx, base, "api/v1/verdicts", nil, maxVerdicts, func(body *fleet.Body) error { return a.readVerdicts(body, of) })
	a.Judged = err == nil
	fail(err)
	fail(r.get(ctx, base, "rdma", nil, maxHCAs, a.readHCAs))
	query := url.Values{}
	for o := range of {
		if len(of) == 1 {
			query.Set("workload", o.workload) // less to send
		}
	}
	err = r.get(ctx, base, "api/v1/peers", query, maxPeers, func(body *fleet.Body) error { return a.readPeers(body, of) })
	if a.Peers = err == nil; !a.Peers {
		clear(a.remotes)
	}
	fail(err)
	// Most sensors do not count launches, which is no problem of the matrix.
	err = r.get(ctx, base, "api/v1/collectives", nil, maxLaunches, func(body *fleet.Body) error { return a.readLaunches(body, of) })
	a.launches = err == nil
	err = r.get(ctx, base, "api/v1/faults", nil, maxFaults, func(body *fleet.Body) error { return a.readFaults(body, of) })
	a.logged = err == nil // nor is an unread log
	fail(r.hold(&a))
	a.Problem = strings.Join(slices.Compact(problems), "; ")
	return a
}

var errTooMany = errors.New("the nodes that are asked for now have too many addresses")

// hold counts a node's addresses until its job has been counted. It drops them if there are too many.
func (r *Reader) hold(a *answer) error {
	n := len(a.addresses) + len(a.remotes) + len(a.ranks)*maxTimes
	if r.held.Add(int64(n)) > maxHeld {
		r.held.Add(-int64(n))
		a.addresses, a.remotes, a.ranks, a.Peers, a.Addresses = map[remote]bool{}, map[remote]ends{}, nil, false, false
		a.launches = false
		return errTooMany
	}
	a.held = n
	return nil
}

// problem returns the text of an error without the URL, shortened: a sensor could make it long.
func problem(err error) string {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return shortened(err.Error(), maxProblem)
}

// get requests a path of a sensor and reads the body, up to a limit.
func (r *Reader) get(ctx context.Context, base, path string, query url.Values, limit int, read func(*fleet.Body) error) error {
	u, err := url.Parse(base)
	if err != nil {
		return err
	}
	u = u.JoinPath(path)
	u.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	response, err := r.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body := &fleet.Body{From: response.Body, Left: limit, Part: limit, TooLarge: errTooLarge}
	if response.StatusCode != http.StatusOK {
		var why struct{ Error, Message string }
		text, _ := io.ReadAll(io.LimitReader(body, maxError))
		_ = json.Unmarshal(text, &why) // another answer has no reason
		return fmt.Errorf("/%s: %s", path, strings.TrimSuffix(response.Status+": "+cmp.Or(why.Error, why.Message), ": "))
	}
	if err := read(body); err != nil {
		return fmt.Errorf("/%s: %w", path, err)
	}
	return nil
}

// readHCAs reads the ports' addresses from the answer to /rdma. A partial answer is used, and its reason returned.
func (a *answer) readHCAs(body *fleet.Body) error {
	var answer struct {
		Data    list[api.HCA]
		Message string
	}
	answer.Data.do = func(h *api.HCA) error {
		if a.addHCA(h); len(a.addresses) > maxAddresses {
			return fmt.Errorf("more than %d addresses", maxAddresses)
		}
		return nil
	}
	if err := json.NewDecoder(body).Decode(&answer); err != nil {
		clear(a.addresses)
		clear(a.subnets)
		return notSensor(err)
	}
	a.Addresses = len(a.addresses) > 0
	switch {
	case strings.HasPrefix(answer.Message, "partial"):
		return errors.New(answer.Message)
	case !a.Addresses:
		return errors.New("no port has an address")
	}
	return nil
}

func (a *answer) addHCA(h *api.HCA) {
	for _, g := range h.GIDs {
		gid, err := gidOf(g.Address)
		if err != nil || gid.IsUnspecified() {
			continue
		}
		a.addresses[remote{gid: gid}] = true
		if g.Index == 0 && g.Type == "ib" {
			bytes := gid.As16()
			a.subnets[portOf{h.Name, g.Port}] = prefix(bytes[:8])
		}
	}
	for _, l := range h.LIDs {
		if s := a.subnets[portOf{h.Name, l.Port}]; s != 0 && l.LID != 0 {
			a.addresses[remote{lid: l.LID, subnet: s}] = true
		}
	}
}

func prefix(bytes []byte) (s subnet) {
	for _, b := range bytes {
		s = s<<8 | subnet(b)
	}
	return s
}

// gidOf parses a GID. Both notations of an IPv4 address give the same GID.
func gidOf(text string) (netip.Addr, error) {
	gid, err := netip.ParseAddr(text)
	return gid.WithZone("").Unmap(), err
}

// readPeers counts owners' queue pairs by remote end, one at a time: the list may be long.
func (a *answer) readPeers(body *fleet.Body, of map[owner]bool) error {
	return eachPeer(body, func(p *api.Peer) error {
		if !of[owner{p.Workload, p.ContainerID}] {
			return nil
		}
		var to remote
		switch {
		case p.RemoteGID != "":
			gid, err := gidOf(p.RemoteGID)
			if err != nil {
				return errNotSensor
			}
			to.gid = gid
		case p.RemoteLID != 0:
			to.lid, to.subnet = p.RemoteLID, a.subnets[portOf{p.Device, int(p.Port)}]
		}
		one := ends{1, min(max(0, p.ReceiveWaitSeconds), maxWait), min(max(0, p.OldestReceiveSeconds), maxWait)}
		if a.remotes[to] = a.remotes[to].add(one); len(a.remotes) > maxAddresses {
			return fmt.Errorf("more than %d remote addresses", maxAddresses)
		}
		return nil
	})
}

func eachPeer(body *fleet.Body, do func(*api.Peer) error) error {
	decoder := json.NewDecoder(body)
	if t, err := decoder.Token(); err != nil || t != json.Delim('[') {
		return notSensor(err)
	}
	for {
		body.Part = maxPeer
		if !decoder.More() {
			break
		}
		var p api.Peer
		if err := decoder.Decode(&p); err != nil {
			return notSensor(err)
		}
		if err := do(&p); err != nil {
			return err
		}
	}
	if _, err := decoder.Token(); err != nil {
		return notSensor(err)
	}
	return nil
}

func notSensor(err error) error {
	_, syntax := errors.AsType[*json.SyntaxError](err)
	_, other := errors.AsType[*json.UnmarshalTypeError](err)
	if err == nil || syntax || other || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errNotSensor
	}
	return err
}
