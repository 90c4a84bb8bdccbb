// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// Peers lists the connected queue pairs of processes with their other ends, as
// the programs saw them being connected. Of one that was connected before the
// hooks were there RDMA netlink told all but the remote GID and LID. The state
// is the one that its process last set: an error that the HCA met is not seen.
//
// Without a device there are none. ErrUnsupported, or what went wrong, says that
// nobody looks.
func (s *Source) Peers(context.Context) ([]model.Peer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.sensor == nil && s.failed != nil:
		return nil, s.failed
	case s.sensor == nil:
		return []model.Peer{}, nil
	case s.sensor.peers == nil:
		i := slices.IndexFunc(s.hooks, func(h model.Hook) bool { return h.Name == peersHook.Name })
		return nil, fmt.Errorf("%w: %s: %s", model.ErrUnsupported, peersHook.Name, s.hooks[i].Reason)
	}
	return s.sensor.readPeers()
}

// attachPeers attaches the hooks of connections. The names of devices come from
// the hooks of objects.
func (s *sensor) attachPeers(symbols map[string]bool) model.Hook {
	out := model.Hook{
		Name: peersHook.Name, State: model.StateUnsupported, Reason: "of no use without the hooks of objects",
	}
	if s.objects != nil {
		out = s.peers.Attach(peersHook, s.opts.Tier, symbols)
	}
	if out.State != model.StateOK {
		s.peers.Close()
		s.peers = nil
	}
	return out
}

func (s *sensor) readPeers() ([]model.Peer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := []model.Peer{}
	var keys []gen.PeersPeerKey
	var values []gen.PeersPeer
	_, err := hook.Batches(s.peers.Coll.Maps[gen.PeersMapPeers], &keys, &values,
		func(k gen.PeersPeerKey, v *gen.PeersPeer) {
			p := model.Peer{
				Cgroup: v.Cgroup, Device: s.deviceName(k.Device), Port: v.Port, QPN: k.Qpn,
				Type: wordOf(queueTypes, v.Type), State: wordOf(queueStates, v.State),
				RemoteLID: v.Lid, RemoteQPN: v.Qpn,
			}
			if v.Routed != 0 {
				p.RemoteGID = netip.AddrFrom16(v.Gid).String()
			}
			found = append(found, p)
		})
	if err != nil {
		return nil, fmt.Errorf("peers: %w", err)
	}
	return found, nil
}

// Of include/rdma/ib_verbs.h: enum ib_qp_state and the types that are connected.
var (
	queueStates = []string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}
	queueTypes  = []string{2: "RC", 3: "UC", 9: "XRC_INI", 10: "XRC_TGT"}
)

// readyToReceive is the first state in which a queue pair knows its other end.
const readyToReceive = 2

// wordOf is the word for a number, or the number where there is none.
func wordOf(words []string, n uint32) string {
	if n < uint32(len(words)) && words[n] != "" {
		return words[n]
	}
	return strconv.FormatUint(uint64(n), 10)
}

// join notes the other end of a queue pair that was connected before the hooks
// were attached.
func (s *sensor) join(o model.Object, cgroup uint64) {
	if s.peers == nil || o.Type != model.QP || o.RemoteQPN == 0 || o.QPState < readyToReceive {
		return
	}
	key := gen.PeersPeerKey{Device: o.Index, Qpn: o.ID}
	p := gen.PeersPeer{
		Cgroup: cgroup, Qpn: o.RemoteQPN, Port: o.Port, Type: uint32(o.QPType), State: uint32(o.QPState),
	}
	err := s.peers.Coll.Maps[gen.PeersMapPeers].Update(key, p, ebpf.UpdateNoExist)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.joined++
	case !errors.Is(err, ebpf.ErrKeyExist):
		s.unjoined++
	}
}

// part forgets a queue pair that went before the hooks could see it go.
func (s *sensor) part(key gen.ObjectsAdoptedKey) {
	if s.peers == nil || key.Type != uint32(gen.ObjectsObjectTypeTYPE_QP) {
		return
	}
	peer := gen.PeersPeerKey{Device: key.Device, Qpn: key.Id}
	if s.peers.Coll.Maps[gen.PeersMapPeers].Delete(peer) == nil {
		s.mu.Lock()
		s.joined--
		s.mu.Unlock()
	}
}
