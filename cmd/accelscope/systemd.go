// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"go.uber.org/zap/zapcore"
)

// notify tells systemd how the service does, as sd_notify(3) says: READY=1,
// STOPPING=1. A process that systemd did not start, or whose unit is not of
// Type=notify, has nobody to tell and no error.
//
// There is no watchdog. What gets stuck here is a driver or a runtime, by
// itself: its source says so in its metrics, the others go on, and a restart
// would cure nothing.
func notify(state string) error {
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

// onJournal says whether w leads to the journal, which has a time of its own
// for each line: systemd.exec(5), JOURNAL_STREAM.
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

// journalLevel puts before the level what makes it the journal's priority:
// sd-daemon(3). journalctl does not show it.
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
