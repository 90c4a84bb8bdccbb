// SPDX-License-Identifier: Apache-2.0

package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/source/link/module"
)

// kernel makes the requests about interfaces. Each may hang in a driver: only one goroutine at a time uses a kernel,
// and it may be abandoned. A returned slice is valid until the next call. EOPNOTSUPP means that the driver lacks the
// feature.
type kernel interface {
	// identify returns index and hardware address of an interface of this network namespace. It needs neither RTNL nor
	// a driver.
	identify(name string) (index int, address []byte, err error)
	dcb(name string) ([]byte, error)
	ethtool(cmd uint8, index int, statistics bool) ([]byte, error)
	module(index int, r module.Read) ([]byte, error)
	statisticNames(name string) ([]byte, error)
	statistics(name string) ([]byte, error)
	close()
}

// hostKernel is the kernel of the host. It opens its sockets with the first request.
type hostKernel struct {
	route, generic *netlink.Conn
	family         uint16 // of generic netlink; 0 while unknown
	ioctl          *ioctlSocket
}

func (k *hostKernel) close() {
	if k.route != nil {
		k.route.Close()
	}
	if k.generic != nil {
		k.generic.Close()
	}
	if k.ioctl != nil {
		k.ioctl.close()
	}
	*k = hostKernel{}
}

var native = binary.NativeEndian

// replyTime is how long a reply may take after the kernel has handled the request. It handles a request inside send, so
// the reply is there at once.
const replyTime = 5 * time.Second

// ask returns the payload of the only reply to a request, which is valid until the next call.
func ask(c *netlink.Conn, typ uint16, body []byte) (payload []byte, err error) {
	err = c.Ask(netlink.Message(typ, 0, body), typ, time.Now().Add(replyTime), func(b []byte) error {
		payload = b
		return nil
	})
	if err == nil && payload == nil {
		err = netlink.ErrMalformed // an acknowledgement, which was not requested
	}
	return payload, err
}

func (k *hostKernel) dcb(name string) ([]byte, error) {
	var err error
	if k.route == nil {
		if k.route, err = netlink.Dial(unix.NETLINK_ROUTE); err != nil {
			return nil, err
		}
	}
	payload, err := ask(k.route, unix.RTM_GETDCB, dcbRequest(name))
	if err != nil {
		return nil, fmt.Errorf("DCB: %w", err)
	}
	return payload, nil
}

func (k *hostKernel) ethtool(cmd uint8, index int, statistics bool) ([]byte, error) {
	return k.askEthtool(cmd, ethtoolRequest(cmd, index, statistics))
}

func (k *hostKernel) module(index int, r module.Read) ([]byte, error) {
	return k.askEthtool(cmdModule, moduleRequest(index, r))
}

func (k *hostKernel) askEthtool(cmd uint8, body []byte) ([]byte, error) {
	if err := k.findFamily(); err != nil {
		return nil, fmt.Errorf("ethtool netlink: %w", err)
	}
	payload, err := ask(k.generic, k.family, body)
	if err != nil {
		return nil, fmt.Errorf("ethtool netlink: command %d: %w", cmd, err)
	}
	return payload, nil
}

// findFamily opens generic netlink and finds the number of the family "ethtool".
func (k *hostKernel) findFamily() (err error) {
	if k.family != 0 {
		return nil
	}
	if k.generic == nil {
		if k.generic, err = netlink.Dial(unix.NETLINK_GENERIC); err != nil {
			return err
		}
	}
	b, err := ask(k.generic, unix.GENL_ID_CTRL, familyRequest("ethtool"))
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("the kernel is built without it: %w: %w", model.ErrUnsupported, unix.EOPNOTSUPP)
	}
	if err != nil {
		return err
	}
	k.family, err = parseFamily(b)
	return err
}

func (k *hostKernel) sockets() (*ioctlSocket, error) {
	var err error
	if k.ioctl == nil {
		k.ioctl, err = openIoctl()
	}
	return k.ioctl, err
}

func (k *hostKernel) identify(name string) (int, []byte, error) {
	s, err := k.sockets()
	if err != nil {
		return 0, nil, err
	}
	return s.identify(name)
}

func (k *hostKernel) statisticNames(name string) ([]byte, error) {
	s, err := k.sockets()
	if err != nil {
		return nil, err
	}
	return s.names(name)
}

func (k *hostKernel) statistics(name string) ([]byte, error) {
	s, err := k.sockets()
	if err != nil {
		return nil, err
	}
	return s.values(name)
}
