// SPDX-License-Identifier: Apache-2.0

package main

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

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia"
)

// controlFlags configure the socket for the commands that change what a running sensor does.
type controlFlags struct {
	Socket string `name:"gpu.control-socket" default:"${socket}" placeholder:"PATH" help:"Socket of the commands gpu and inventory (root)."`
}

// defaultSocket is the default of --gpu.control-socket. Its directory belongs to the sensor.
const defaultSocket = "/run/accelscope/control.sock"

// The requests of the control socket. GET /gpu/status, POST /gpu/release?for=10m&reason=TEXT and
// POST /gpu/resume answer with a gpuStatus.
const (
	statusPath  = "/gpu/status"
	releasePath = "/gpu/release"
	resumePath  = "/gpu/resume"
)

const (
	defaultRelease = 10 * time.Minute
	longestRelease = 24 * time.Hour
	maxReason      = 200 // bytes
)

// gpuStatus is whether NVIDIA's library is open.
type gpuStatus struct {
	State  string     `json:"state"` // ok: it is open; released, absent, failed, unsupported
	Reason string     `json:"reason,omitempty"`
	Until  *time.Time `json:"until,omitempty"` // end of the release
	Closed []string   `json:"closed"`          // device nodes that were closed by the release
	Open   []string   `json:"open"`            // device nodes that are open
}

// releaser is a source that can close the library of its driver.
type releaser interface {
	Release(reason string, d time.Duration) nvidia.Status
	Hold(reason string, d time.Duration) nvidia.Status
	EndHold(reason string)
	Resume() nvidia.Status
	Status() nvidia.Status
}

// noGPUs is the releaser of a sensor that does not read NVIDIA's GPUs: it has nothing open.
type noGPUs struct{}

func (noGPUs) Release(string, time.Duration) nvidia.Status { return noGPUs{}.Status() }
func (noGPUs) Hold(string, time.Duration) nvidia.Status    { return noGPUs{}.Status() }
func (noGPUs) EndHold(string)                              {}
func (noGPUs) Resume() nvidia.Status                       { return noGPUs{}.Status() }

func (noGPUs) Status() nvidia.Status {
	return nvidia.Status{State: model.StateAbsent, Reason: "this sensor does not read NVIDIA's GPUs"}
}

// newControl returns the handler of the control socket.
func newControl(gpus releaser, had accepter) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(http.MethodPost+" "+acceptPath, accepting(had))
	handle := func(method, path string, answer func(*http.Request) (nvidia.Status, error)) {
		mux.HandleFunc(method+" "+path, func(w http.ResponseWriter, r *http.Request) {
			got, err := answer(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			status := gpuStatus{State: string(got.State), Reason: got.Reason, Closed: notNil(got.Closed), Open: notNil(got.Open)}
			if !got.Until.IsZero() {
				status.Until = &got.Until
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(status) // the client may have ended
		})
	}
	handle(http.MethodGet, statusPath, func(*http.Request) (nvidia.Status, error) { return gpus.Status(), nil })
	handle(http.MethodPost, releasePath, func(r *http.Request) (nvidia.Status, error) {
		d, reason := defaultRelease, "requested by accelscope gpu release"
		if text := r.URL.Query().Get("for"); text != "" {
			var err error
			if d, err = time.ParseDuration(text); err != nil || d <= 0 || d > longestRelease {
				return nvidia.Status{}, fmt.Errorf("for=%q: want a duration of up to %v, such as 10m", text, longestRelease)
			}
		}
		if text := r.URL.Query().Get("reason"); text != "" {
			reason = printable(text[:min(len(text), maxReason)])
		}
		return gpus.Release(reason, d), nil
	})
	handle(http.MethodPost, resumePath, func(*http.Request) (nvidia.Status, error) { return gpus.Resume(), nil })
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
	if path == defaultSocket { // a container runtime creates the directory of a mount with other permissions
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

// serveControl serves the control socket until the returned function is called; gpus may be nil. A socket that cannot be created is no
// reason to end the sensor.
func serveControl(f controlFlags, gpus releaser, had accepter, log *zap.Logger) (stop func()) {
	if gpus == nil {
		gpus = noGPUs{}
	}
	l, err := listenControl(f.Socket)
	if err != nil {
		log.Info("no control socket: accelscope gpu and inventory do not work", zap.Error(err))
		return func() {}
	}
	server := newServer(newControl(gpus, had), log)
	server.ConnState = newClients(log).connState
	go func() { _ = server.Serve(l) }()
	return func() { _ = server.Close() } // removes the socket
}
