// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// The table has up to 1024 entries (rxe; 256 on mlx5). The kernel puts a new GID into the first empty entry (find_gid
// in core/cache.c). An entry after emptyGIDs empty entries is a leftover from a time with many more addresses.
const (
	maxGIDs   = 1024
	emptyGIDs = 64
)

// readGIDs reads the GID table of a port: gids/I, gid_attrs/types/I and gid_attrs/ndevs/I. The kernel reads its own
// table, without a firmware command. It has these files for each entry; reading the type of an empty entry fails with
// EINVAL, or with ENODATA from the GID cache. readGIDs reads emptyGIDs entries after the last entry that was ever
// found. It returns nil if the table cannot be read.
func (d *Device) readGIDs(p *Port) []model.GID {
	r := &d.Reader
	dir := "ports/" + strconv.Itoa(p.Base.Number) + "/"
	types, err := r.Openat(d.dir, dir+"gid_attrs/types", unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	defer r.Close(types)
	gids := []model.GID{}
	for i := 0; i < min(p.gidsEnd+emptyGIDs, maxGIDs); i++ {
		index := strconv.Itoa(i)
		text, err := r.attribute(types, index)
		switch {
		case errors.Is(err, unix.ENOENT):
			return gids
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENODATA):
			continue
		case err != nil:
			return nil
		}
		address := parseGID(r.Line(d.dir, dir+"gids/"+index))
		if kind := gidType(text, p.Base.LinkLayer, d.HCA.NodeType); kind != "" && address.IsValid() {
			p.gidsEnd = max(p.gidsEnd, i+1)
			gids = append(gids, model.GID{
				Index: i, Type: kind, Address: address, Netdev: r.Line(d.dir, dir+"gid_attrs/ndevs/"+index),
			})
		}
	}
	return gids
}

// gidType returns the type of an entry. types/I is "RoCE v2", or "IB/RoCE v1" for all other types: the link layer and
// the node type iWARP distinguish these.
func gidType(text, linkLayer, nodeType string) model.GIDType {
	switch {
	case text == "RoCE v2":
		return model.GIDRoCEv2
	case text != "IB/RoCE v1":
		return ""
	case linkLayer == "InfiniBand":
		return model.GIDInfiniBand
	case linkLayer == "Ethernet" && nodeType == "CA":
		return model.GIDRoCEv1
	}
	return model.GIDOther
}

// parseGID parses gids/I, eight groups of four digits. It returns an invalid address for an empty entry.
func parseGID(text string) netip.Addr {
	const length = len("0000:0000:0000:0000:0000:0000:0000:0000")
	address, err := netip.ParseAddr(text)
	if err != nil || len(text) != length || strings.Contains(text, "%") || address.IsUnspecified() {
		return netip.Addr{}
	}
	return address
}

// attribute returns an attribute of one line.
func (r *Reader) attribute(dir int, name string) (string, error) {
	fd, err := r.Openat(dir, name, 0)
	if err != nil {
		return "", err
	}
	defer r.Close(fd)
	n, err := r.pread(fd, r.Buffer[:maxValue+1])
	if err != nil {
		return "", err
	}
	return ParseLine(r.Buffer[:n]), nil
}
