// SPDX-License-Identifier: Apache-2.0

package drm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hotplug"
	"github.com/accelscope/accelscope/pkg/model"
)

// class is a FAKE of class/drm, with cards that have no device. Package source/drm tests devices.
type class struct {
	t   *testing.T
	dir string
}

func (c class) add(name string) {
	c.t.Helper()
	dir := filepath.Join(c.dir, "class/drm")
	err := errors.Join(os.MkdirAll(dir, 0o755), os.Symlink("../../devices/"+name+"/drm/"+name, filepath.Join(dir, name)))
	if err != nil {
		c.t.Fatal(err)
	}
}

// TestShared: readers at the same moment share a listing, and no reader gets it twice.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := class{t, t.TempDir()}
		c.add("card0")
		cards := NewCards(c.dir, nil)
		a, b := cards.Reader(), cards.Reader()
		want := func(when string, r *Reader, n, listings int) {
			t.Helper()
			got, err := r.List()
			if len(got) != n || err != nil || cards.count != listings {
				t.Errorf("%s: %d cards, %v, after %d listings; want %d after %d", when, len(got), err, cards.count, n, listings)
			}
		}
		want("the first", a, 1, 1)
		c.add("card1")
		want("another at the same moment", b, 1, 1)
		want("again", b, 2, 2)
		want("which the first shares", a, 2, 2)
		want("the next round", a, 2, 3)
		c.add("card2")
		time.Sleep(2 * shared)
		want("much later", b, 3, 4)
	})
}

// TestAnnounced: while the kernel announces changes, readers share a listing for a minute. uevents of a real device stand in for uevents of
// a card.
func TestAnnounced(t *testing.T) {
	c := class{t, t.TempDir()}
	c.add("card0")
	if err := errors.Join(
		os.MkdirAll(filepath.Join(c.dir, "proc/1/ns"), 0o755),
		os.Symlink("/proc/self/ns/net", filepath.Join(c.dir, "proc/1/ns/net")),
	); err != nil {
		t.Fatal(err)
	}
	w, err := hotplug.Open("/sys", filepath.Join(c.dir, "proc"), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cards := NewCards(c.dir, w)
	cards.changes = w.Devices("tty")
	r := cards.Reader()
	for range 3 {
		if got, err := r.List(); len(got) != 1 || err != nil || cards.count != 1 {
			t.Fatalf("%d cards, %v, %d listings", len(got), err, cards.count)
		}
	}
	c.add("card1")
	if err := os.WriteFile("/sys/class/tty/tty/uevent", []byte("add"), 0o200); err != nil {
		t.Fatal(err) // needs root
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if got, _ := r.List(); len(got) == 2 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%d cards after an announcement", len(got))
		}
	}
	cards.at = cards.at.Add(-hotplug.Interval)
	if _, _ = r.List(); cards.count != 3 {
		t.Errorf("%d listings after a minute", cards.count)
	}
}

// TestMaxCards: with too many cards the first ones are listed, with an error.
func TestMaxCards(t *testing.T) {
	c := class{t, t.TempDir()}
	for i := range maxCards + 2 {
		c.add(fmt.Sprintf("card%d", i))
	}
	c.add("renderD128")
	got, err := NewCards(c.dir, nil).Reader().List()
	if len(got) != maxCards+1 || err == nil || errors.Is(err, model.ErrAbsent) {
		t.Errorf("%d cards, %v", len(got), err)
	}
}
