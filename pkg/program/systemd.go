// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"go.uber.org/zap/zapcore"
)

// Notify sends the state of the service to systemd, as in sd_notify(3): READY=1
// or STOPPING=1. It does nothing if systemd did not start the process or the
// unit is not of Type=notify.
//
// There is no watchdog. A driver or a runtime can hang, but then only its source
// is stuck, which the metrics show, and a restart would not cure it.
func Notify(state string) error {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, state); err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	return nil
}

// RuntimeDirectory returns the directory for temporary files that systemd made for the unit, empty if the unit has no
// such directory: systemd.exec(5), RUNTIME_DIRECTORY.
func RuntimeDirectory() string {
	first, _, _ := strings.Cut(os.Getenv("RUNTIME_DIRECTORY"), ":")
	return first
}

// onJournal reports whether w is the journal, which adds the time to each line:
// systemd.exec(5), JOURNAL_STREAM.
func onJournal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	var device, inode uint64
	if _, err := fmt.Sscanf(os.Getenv("JOURNAL_STREAM"), "%d:%d", &device, &inode); err != nil {
		return false
	}
	info, err := f.Stat()
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && uint64(st.Dev) == device && st.Ino == inode
}

// journalLevel adds the prefix of sd-daemon(3) from which the journal takes the
// priority. journalctl does not show it.
func journalLevel(l zapcore.Level, enc zapcore.PrimitiveArrayEncoder) {
	priority := "<6>"
	switch {
	case l >= zapcore.ErrorLevel:
		priority = "<3>"
	case l == zapcore.WarnLevel:
		priority = "<4>"
	case l == zapcore.DebugLevel:
		priority = "<7>"
	}
	enc.AppendString(priority + l.String())
}
