// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/api/events"
	containers "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestContainerdChurn creates and removes containers of a real containerd, four at a time. Each is reported once, in
// order from create to delete, with its exit code.
func TestContainerdChurn(t *testing.T) {
	t.Parallel()
	const workers, each = 4, 8
	d := startDaemon(t, withoutCRI)
	s := open(t, Options{Sockets: []Socket{{"containerd", d.socket()}}})
	listed(t, s)
	r := record1(s)
	var working sync.WaitGroup
	for w := range workers {
		working.Go(func() {
			for i := range each {
				id := fmt.Sprintf("c%d-%d", w, i)
				d.run("default", id, fmt.Sprintf("exit %d", w*each+i))
				d.end("default", id)
			}
		})
	}
	working.Wait()
	empty := func() bool {
		n := -1
		s.Snapshot(func(all []model.Container) { n = len(all) })
		return n == 0
	}
	for began := time.Now(); !empty(); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > soon {
			s.Snapshot(func(all []model.Container) {
				for _, c := range all {
					t.Errorf("%s is left: %q", c.ID, r.of(c.ID))
				}
			})
			break
		}
	}
	for w := range workers {
		for i := range each {
			id := fmt.Sprintf("c%d-%d", w, i)
			life := r.of(id)
			if len(life) == 4 && life[2] == "exit "+id+" exited code=137 signal=9" {
				continue // d.end was faster than the container
			}
			if d := cmp.Diff([]string{
				"create " + id + " created", "start " + id + " running",
				fmt.Sprintf("exit %s exited code=%d", id, w*each+i), "delete " + id + " exited",
			}, life); d != "" {
				t.Error(d)
			}
		}
	}
	if left := replay(r.events); len(left) != 0 {
		t.Errorf("a replay of the events has %v", left)
	}
}

type gone struct{ containers.ContainersClient }

func (gone) Get(context.Context, *containers.GetContainerRequest, ...grpc.CallOption) (*containers.GetContainerResponse, error) {
	return nil, status.Error(codes.NotFound, "gone")
}

// TestContainerdLate removes a container before its first event is handled, as on a busy node: it is reported
// nevertheless.
func TestContainerdLate(t *testing.T) {
	f := newTestFeed()
	d := &containerdDriver{feed: f, containers: gone{}, known: map[string]bool{}, pods: map[string]podLabels{}}
	for i, e := range []proto.Message{
		&events.ContainerCreate{ID: "c"}, &events.TaskStart{ContainerID: "c", Pid: 7},
		&events.TaskExit{ContainerID: "c", ID: "c", Pid: 7, ExitStatus: 3}, &events.ContainerDelete{ID: "c"},
		&events.TaskStart{ContainerID: "never", Pid: 8}, // a container without a create event
	} {
		body, err := anypb.New(e)
		if err != nil {
			t.Fatal(err)
		}
		id, exists, err := d.happened(t.Context(), &types.Envelope{
			Namespace: "default", Timestamp: timestamppb.New(at(i + 1)), Event: body,
		})
		if err != nil || exists != (i < 3) {
			t.Errorf("%s exists after event %d: %v, %v", id, i, exists, err)
		}
	}
	if d := cmp.Diff([]string{
		"create c created", "start c running pid=7", "exit c exited code=3", "delete c exited",
	}, lines(f.events)); d != "" {
		t.Error(d)
	}
	if len(d.known) > 0 {
		t.Errorf("known: %v", d.known)
	}
}

func TestReconnectLeaksNothing(t *testing.T) {
	f := &fakeCRI{name: "cri-o"}
	path := startCRI(t, f)
	drive := func() {
		ctx, cancel := context.WithCancel(t.Context())
		feed := newTestFeed()
		feed.onSync = cancel
		if err := cri(ctx, Options{}, path, feed); err != nil {
			t.Fatal(err)
		}
	}
	drive()
	before := descriptors(t)
	for range 100 {
		drive()
	}
	if after := descriptors(t); after > before+20 {
		t.Errorf("%d descriptors, then %d", before, after)
	}
}

func descriptors(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
