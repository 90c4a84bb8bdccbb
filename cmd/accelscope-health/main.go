// SPDX-License-Identifier: Apache-2.0

// Command accelscope-health is the health check of the image: it succeeds if /healthz of the sensor answers 200. It asks
// over plain HTTP, without net/http, because it runs every 30 s. If that fails, or if configuration files may name
// another address or TLS, it executes accelscope doctor --health.
package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	if healthy(os.Getenv) {
		return
	}
	self, err := os.Executable()
	if err == nil {
		sensor := filepath.Join(filepath.Dir(self), "accelscope")
		err = syscall.Exec(sensor, []string{sensor, "doctor", "--health"}, os.Environ())
	}
	_, _ = os.Stderr.WriteString("execute accelscope doctor --health: " + err.Error() + "\n")
	os.Exit(1)
}

// healthy reports whether the sensor that this environment configures answers 200. It returns false if the answer
// is unknown.
func healthy(env func(string) string) bool {
	if env("ACCELSCOPE_CONFIG_FILE") != "" || env("ACCELSCOPE_WEB_CONFIG_FILE") != "" {
		return false
	}
	address := env("ACCELSCOPE_WEB_LISTEN_ADDRESS")
	if address == "" {
		address = ":9847"
	}
	if address[0] == ':' {
		address = "0.0.0.0" + address
	}
	server, err := netip.ParseAddrPort(address)
	if err != nil {
		return false // a host name, or several addresses
	}
	if server.Addr().IsUnspecified() {
		server = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), server.Port())
	}
	answer := ask(server, "GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
	version, status, _ := strings.Cut(answer, " ")
	return strings.HasPrefix(version, "HTTP/1.") && strings.HasPrefix(status, "200 ")
}

// ask sends a request, and returns the first bytes of the answer. Connecting, sending and receiving take at most a second
// each. It returns "" if the server cannot be asked.
func ask(server netip.AddrPort, request string) string {
	family, address := syscall.AF_INET6, syscall.Sockaddr(&syscall.SockaddrInet6{Port: int(server.Port()), Addr: server.Addr().As16()})
	if server.Addr().Is4() {
		family, address = syscall.AF_INET, &syscall.SockaddrInet4{Port: int(server.Port()), Addr: server.Addr().As4()}
	}
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer syscall.Close(fd) //nolint:errcheck // the process ends
	for _, limit := range []int{syscall.SO_SNDTIMEO, syscall.SO_RCVTIMEO} {
		if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, limit, &syscall.Timeval{Sec: 1}); err != nil {
			return ""
		}
	}
	if err := syscall.Connect(fd, address); err != nil {
		return ""
	}
	if _, err := syscall.Write(fd, []byte(request)); err != nil {
		return ""
	}
	var answer [64]byte
	n, err := syscall.Read(fd, answer[:])
	if err != nil {
		return ""
	}
	return string(answer[:n])
}
