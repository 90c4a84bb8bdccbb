// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

const (
	fileName = "inventory.json"
	tempName = ".inventory.json.new"
	version  = 1
	// maxFile exceeds the size of a file with maxDevices devices and maxModules modules.
	maxFile = 1 << 20
	maxText = 256
)

// owner identifies the machine of a file's devices.
type owner struct {
	Machine string `json:"machine"` // machine id; may be empty, as in some containers
	Sysfs   string `json:"sysfs"`
	boot    string
}

// content is the file.
type content struct {
	Version int `json:"version"`
	owner
	// Boot is the node's boot id when the file was written.
	Boot    string    `json:"boot"`
	Devices []*device `json:"devices"`
	// Modules are apart from Devices, so that older sensors can use the file.
	Modules []*device `json:"modules,omitempty"`
}

// Errors of unusable files.
var (
	errForeign = errors.New("it is of another machine")
	errVersion = errors.New("it has another version")
	errCorrupt = errors.New("it is corrupt")
)

func encode(of owner, devices []*device) ([]byte, error) {
	c := content{Version: version, owner: of, Boot: of.boot, Devices: []*device{}}
	for _, d := range devices {
		if d.Kind == model.KindModule {
			c.Modules = append(c.Modules, d)
		} else {
			c.Devices = append(c.Devices, d)
		}
	}
	text, err := json.MarshalIndent(c, "", " ")
	return append(text, '\n'), err
}

// decode returns the devices of a file. The result is bounded for any content.
func decode(text []byte, of owner) ([]*device, error) {
	var c content
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	switch {
	case c.Version != version:
		return nil, fmt.Errorf("%w: %d, not %d", errVersion, c.Version, version)
	case c.Machine != of.Machine:
		return nil, fmt.Errorf("%w: %q, not %q", errForeign, c.Machine, of.Machine)
	case c.Sysfs != of.Sysfs:
		return nil, fmt.Errorf("%w: sysfs at %q, not at %q", errForeign, c.Sysfs, of.Sysfs)
	case len(c.Devices) > maxDevices || len(c.Modules) > maxModules:
		return nil, fmt.Errorf("%w: %d devices, %d modules", errCorrupt, len(c.Devices), len(c.Modules))
	}
	devices := slices.Concat(c.Devices, c.Modules)
	for n, d := range devices {
		if err := d.check(); err != nil {
			return nil, fmt.Errorf("%w: %w", errCorrupt, err)
		}
		if (d.Kind == model.KindModule) != (n >= len(c.Devices)) {
			return nil, fmt.Errorf("%w: a device of the kind %s in the wrong list", errCorrupt, d.Kind)
		}
	}
	return devices, nil
}

// check rejects values that this program does not write.
func (d *device) check() error {
	kinds := []model.DeviceKind{model.KindGPU, model.KindHCA, model.KindModule}
	if d == nil || !slices.Contains(kinds, d.Kind) || d.ID == "" || d.Slot == "" || d.Source == "" {
		return errors.New("a device without kind, id, slot or source")
	}
	for _, text := range []string{d.ID, d.Source, d.Slot, d.Name, d.Serial, d.Boot} {
		if len(text) > maxText || !utf8.ValidString(text) {
			return errors.New("a text that is too long")
		}
	}
	if len(d.Links) > maxLinks || d.Seen.IsZero() && d.Gone.IsZero() {
		return errors.New("a device with too many links, or that was neither seen nor missed")
	}
	return nil
}

// load reads the file of an earlier sensor. An unusable file is reported, and the next write replaces it. A file that
// cannot be read now, for example on a disk with errors, is not replaceable: it may hold unique data.
func load(dir string, of owner, log *zap.Logger) (devices []*device, replaceable bool) {
	path := filepath.Join(dir, fileName)
	text, err := read(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, true
	}
	if err == nil {
		devices, err = decode(text, of)
	}
	replaceable = err == nil || errors.Is(err, errCorrupt) || errors.Is(err, errForeign) || errors.Is(err, errVersion)
	switch {
	case !replaceable:
		log.Warn(inMemory, zap.String("file", path), zap.Error(err))
	case err != nil:
		log.Warn("the inventory of an earlier sensor is not used", zap.String("file", path), zap.Error(err))
	}
	return devices, replaceable
}

func read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO must not delay the start
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%w: no regular file", errCorrupt))
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%w: larger than %d bytes", errCorrupt, maxFile)
	}
	return text, err
}

// replace writes a new file, which replaces the old file once it is completely on the disk: at any moment there is one
// whole file. The lock of the directory keeps other sensors and commands from the new file.
func replace(dir string, text []byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another sensor writes to %s: %w", dir, err)
	}
	temp := filepath.Join(dir, tempName)
	if err := create(temp, text); err != nil {
		return errors.Join(err, ignoreAbsent(os.Remove(temp)))
	}
	if err := os.Rename(temp, filepath.Join(dir, fileName)); err != nil {
		return err
	}
	return d.Sync()
}

func ignoreAbsent(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func create(path string, text []byte) error {
	if err := ignoreAbsent(os.Remove(path)); err != nil { // left by a killed sensor, or foreign
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
