// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/httpserver"
	"github.com/accelscope/accelscope/pkg/model"
)

// Releaser is a source that can close the library of its driver.
type Releaser interface {
	Release(reason string, d time.Duration) model.LibraryStatus
	Hold(reason string, d time.Duration) model.LibraryStatus
	EndHold(reason string)
	Resume() model.LibraryStatus
	Status() model.LibraryStatus
}

// noGPUs is the Releaser of a sensor that does not read NVIDIA's GPUs: it has nothing open.
type noGPUs struct{}

func (noGPUs) Release(string, time.Duration) model.LibraryStatus { return noGPUs{}.Status() }
func (noGPUs) Hold(string, time.Duration) model.LibraryStatus    { return noGPUs{}.Status() }
func (noGPUs) EndHold(string)                                    {}
func (noGPUs) Resume() model.LibraryStatus                       { return noGPUs{}.Status() }

func (noGPUs) Status() model.LibraryStatus {
	return model.LibraryStatus{State: model.StateAbsent, Reason: "this sensor does not read NVIDIA's GPUs"}
}

// newControl returns the handler of the control socket.
func newControl(gpus Releaser, had Accepter) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(http.MethodPost+" "+acceptPath, accepting(had))
	handle := func(method, path string, answer func(*http.Request) (model.LibraryStatus, error)) {
		mux.HandleFunc(method+" "+path, func(w http.ResponseWriter, r *http.Request) {
			got, err := answer(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			status := GPUStatus{State: string(got.State), Reason: got.Reason, Closed: notNil(got.Closed), Open: notNil(got.Open)}
			if !got.Until.IsZero() {
				status.Until = &got.Until
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(status) // the client may have ended
		})
	}
	handle(http.MethodGet, statusPath, func(*http.Request) (model.LibraryStatus, error) { return gpus.Status(), nil })
	handle(http.MethodPost, releasePath, func(r *http.Request) (model.LibraryStatus, error) {
		d, reason := defaultRelease, "requested by accelscope gpu release"
		if text := r.URL.Query().Get("for"); text != "" {
			var err error
			if d, err = time.ParseDuration(text); err != nil || d <= 0 || d > longestRelease {
				return model.LibraryStatus{}, fmt.Errorf("for=%q: want a duration of up to %v, such as 10m", text, longestRelease)
			}
		}
		if text := r.URL.Query().Get("reason"); text != "" {
			reason = format.Line(text[:min(len(text), maxReason)])
		}
		return gpus.Release(reason, d), nil
	})
	handle(http.MethodPost, resumePath, func(*http.Request) (model.LibraryStatus, error) { return gpus.Resume(), nil })
	return mux
}

func notNil(list []string) []string { return append([]string{}, list...) }

// listenControl creates the socket, which only root and the user of the sensor can use. It
// replaces the socket of a sensor that has ended.
func listenControl(path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if path == config.DefaultSocket { // a container runtime creates the directory of a mount with other permissions
		if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a directory
			return nil, err
		}
	}
	l, err := listenPrivately(path)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	if other, err := net.Dial("unix", path); err == nil {
		_ = other.Close()
		return nil, fmt.Errorf("%s: another sensor listens there", path)
	}
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	return listenPrivately(path)
}

// listenPrivately creates a socket with mode 0600.
func listenPrivately(path string) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return privateListener{l}, nil
}

// privateListener accepts the connections of root and of the user of the sensor: the mode of
// the directory, which may be shared by containers, is not the only protection.
type privateListener struct{ net.Listener }

// Accept waits for a permitted connection.
func (l privateListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if uid, err := peerUser(c); err == nil && (uid == 0 || uid == os.Geteuid()) {
			return c, nil
		}
		_ = c.Close()
	}
}

// peerUser returns the user of the process at the other end (SO_PEERCRED).
func peerUser(c net.Conn) (uid int, err error) {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		var peer *unix.Ucred
		if peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid = int(peer.Uid)
		}
	})
	return uid, errors.Join(controlErr, err)
}

// Serve serves the control socket until the returned function is called; gpus may be nil. A socket that cannot be created is no
// reason to end the sensor.
func Serve(socket string, gpus Releaser, had Accepter, log *zap.Logger) (stop func()) {
	if gpus == nil {
		gpus = noGPUs{}
	}
	l, err := listenControl(socket)
	if err != nil {
		log.Info("no control socket: accelscope gpu and inventory do not work", zap.Error(err))
		return func() {}
	}
	server := httpserver.New(newControl(gpus, had), httpserver.NewClients(log), log)
	go func() { _ = server.Serve(l) }()
	return func() { _ = server.Close() } // removes the socket
}

func accepting(had Accepter) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(acceptance{notNil(had.Accept(time.Now(), r.URL.Query()["id"]))}) // the client may have ended
	}
}
