// SPDX-License-Identifier: Apache-2.0

package guest

import "syscall"

// Pause stops containerd with SIGSTOP: its socket accepts connections, but does not answer.
func (c *Containerd) Pause() error { return c.server.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume continues a paused containerd.
func (c *Containerd) Resume() error { return c.server.cmd.Process.Signal(syscall.SIGCONT) }

// Pause stops the engine with SIGSTOP.
func (d *Docker) Pause() error { return d.server.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume continues a paused engine.
func (d *Docker) Resume() error { return d.server.cmd.Process.Signal(syscall.SIGCONT) }
