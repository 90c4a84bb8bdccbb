// SPDX-License-Identifier: Apache-2.0

package probe

import (
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

// Peers lists the connected queue pairs of processes with their remote ends, as the programs see them. If a queue pair
// was connected before the hooks were attached, RDMA netlink reports its remote end without GID and LID. The state is
// the last state that the process set: errors met by the HCA are not visible.
//
// Without a device the list is empty. The error is ErrUnsupported, or the reason why the hooks failed.
func (s *Source) Peers() ([]model.Peer, error) {
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

// attachPeers attaches the hooks of connections. The hooks of objects provide the names of devices.
func (s *sensor) attachPeers(o *hook.Object) ([]model.Hook, error) {
	if s.objects == nil {
		return []model.Hook{peersHook.Unattached("needs the hooks of objects")}, errUnattached
	}
	return attachOne(o, peersHook, s.opts.Tier)
}

func (s *sensor) attachCgroups(o *hook.Object) ([]model.Hook, error) {
	if s.verbs == nil && s.objects == nil {
		return []model.Hook{cgroupHook.Unattached("needs another hook")}, errUnattached
	}
	return attachOne(o, cgroupHook, "")
}

func attachOne(o *hook.Object, h hook.Hook, only string) ([]model.Hook, error) {
	hooks := o.AttachAll([]hook.Hook{h}, only)
	if !attached(hooks[0]) {
		return hooks, errUnattached
	}
	return hooks, nil
}

func (t *tables) readPeers() ([]model.Peer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := []model.Peer{}
	var keys []gen.PeersPeerKey
	var values []gen.PeersPeer
	_, err := hook.Batches(t.peers.Coll.Maps[gen.PeersMapPeers], &keys, &values,
		func(k gen.PeersPeerKey, v *gen.PeersPeer) {
			p := model.Peer{
				Cgroup: model.CgroupID(v.Cgroup), Device: t.deviceName(k.Device), Port: v.Port, QPN: k.Qpn,
				Type: model.QPTypeName(v.Type), State: nameOf(queueStates, v.State),
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

// queueStates are the names of an enum ib_qp_state (include/rdma/ib_verbs.h).
var queueStates = []string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// readyToReceive is the first state in which a queue pair has a remote end.
const readyToReceive = 2

func nameOf(names []string, n uint32) string {
	if n < uint32(len(names)) && names[n] != "" {
		return names[n]
	}
	return strconv.FormatUint(uint64(n), 10)
}

// addPeer records the remote end of a queue pair connected before the hooks were attached.
func (t *tables) addPeer(o model.Object, cgroup, owner uint64) {
	if t.peers == nil || o.Type != model.QP || o.RemoteQPN == 0 || o.QPState < readyToReceive {
		return
	}
	key := gen.PeersPeerKey{Device: o.Index, Qpn: o.ID}
	p := gen.PeersPeer{
		Cgroup: cgroup, Owner: owner, Qpn: o.RemoteQPN, Port: o.Port, Type: uint32(o.QPType), State: uint32(o.QPState),
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	peers := t.peers.Coll.Maps[gen.PeersMapPeers]
	if t.peers.Owners.Has(p.Owner, peersOfOwner, peers.MaxEntries()/objectsShare) {
		if peers.Lookup(key, &gen.PeersPeer{}) != nil {
			t.unadopted.add(p.Owner, gen.VerbsLossLOSS_PEERS_SHARE, o.Type)
		}
		return
	}
	err := peers.Update(key, p, ebpf.UpdateNoExist)
	switch {
	case err == nil:
		t.joined++
		t.peers.Owners.Add(p.Owner, peersOfOwner, 1)
	case !errors.Is(err, ebpf.ErrKeyExist):
		t.unjoined++
	}
}

// removePeer removes a queue pair that was destroyed before the hooks could see it.
func (t *tables) removePeer(key gen.ObjectsAdoptedKey) {
	if t.peers == nil || key.Type != uint32(gen.ObjectsObjectTypeTYPE_QP) {
		return
	}
	peer := gen.PeersPeerKey{Device: key.Device, Qpn: key.Id}
	var p gen.PeersPeer
	peers := t.peers.Coll.Maps[gen.PeersMapPeers]
	if peers.Lookup(peer, &p) != nil || peers.Delete(peer) != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.joined--
	t.peers.Owners.Add(p.Owner, peersOfOwner, -1)
}
