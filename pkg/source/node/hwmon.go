// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// sensorTypes lists the types of sensors that node_exporter supports.
var sensorTypes = []string{
	"vrm", "beep_enable", "update_interval", "in", "cpu", "fan", "pwm", "temp", "curr", "power", "energy", "humidity",
	"intrusion", "freq",
}

const maxSensorFiles = 4096

// hwmonReader reads class/hwmon. Names and limits are cached: they are four of five files.
type hwmonReader struct {
	dir  string
	kept map[string]*chip
}

type chip struct {
	inode      uint64
	id, driver string // derived from the device and the name as in node_exporter
	sensors    []*sensor
	hot        []*sensorFile // read by every scrape
	read       time.Time
}

type sensor struct {
	name, typ string
	label     *string
	files     []*sensorFile
}

type sensorFile struct {
	path, property string
	value          float64
	ok             bool
}

func (h *hwmonReader) read(now time.Time, n *reading) error {
	entries, err := os.ReadDir(h.dir)
	if err != nil {
		return err
	}
	kept := make(map[string]*chip, len(h.kept))
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if e.Type().IsRegular() || len(names) == maxDevices {
			continue
		}
		inode := inodeOf(e)
		c := h.kept[e.Name()]
		if c == nil || c.inode != inode || now.Sub(c.read) >= coldAge {
			c = newChip(filepath.Join(h.dir, e.Name()))
			c.inode, c.read = inode, now
		} else {
			for _, f := range c.hot {
				f.get()
			}
		}
		kept[e.Name()] = c
		names = append(names, e.Name())
	}
	h.kept = kept
	n.Chips = make([]model.Chip, 0, len(names))
	ids := h.ids(names)
	for _, name := range names {
		c := kept[name]
		n.Chips = append(n.Chips, model.Chip{ID: ids[name], Name: c.driver, Sensors: c.figures()})
	}
	return nil
}

// ids returns a distinct id for the chip of each directory. Chips of a device have the driver's name added, as in
// node_exporter, or the directory's if the names are equal as labels.
func (h *hwmonReader) ids(dirs []string) map[string]string {
	ids := make(map[string]string, len(dirs))
	for _, dir := range dirs {
		ids[dir] = h.kept[dir].id
	}
	lengthen := func(suffix func(dir string) string) {
		chips := map[string]int{}
		for _, id := range ids {
			chips[id]++
		}
		for dir, id := range ids {
			if chips[id] > 1 {
				ids[dir] = id + "_" + suffix(dir)
			}
		}
	}
	lengthen(func(dir string) string {
		sameName := 0
		c := h.kept[dir]
		for _, other := range h.kept {
			if other.id == c.id && other.driver == c.driver {
				sameName++
			}
		}
		if c.driver == "" || sameName > 1 {
			return labelOf(dir)
		}
		return c.driver
	})
	lengthen(labelOf) // an id with a name may be the id of another chip
	return ids
}

// newChip reads all files of a chip. Old drivers have them in the directory of the device.
func newChip(dir string) *chip {
	c := &chip{}
	var buf [maxSys]byte
	if b, err := attribute(dir+"/name", &buf); err == nil {
		c.driver = labelOf(string(b))
	}
	device, err := filepath.EvalSymlinks(dir + "/device")
	if err == nil {
		if c.id = labelOf(filepath.Base(device)); c.id != "" {
			if bus := labelOf(filepath.Base(filepath.Dir(device))); bus != "" {
				c.id = bus + "_" + c.id
			}
		}
	}
	if c.id == "" {
		c.id = cmp.Or(c.driver, labelOf(filepath.Base(dir)))
	}
	sensors := map[string]*sensor{}
	c.scan(dir, sensors)
	if err == nil {
		c.scan(dir+"/device", sensors)
	}
	slices.SortFunc(c.sensors, func(a, b *sensor) int { return strings.Compare(a.name, b.name) })
	return c
}

func (c *chip) scan(dir string, sensors map[string]*sensor) {
	entries, _ := os.ReadDir(dir) // an unreadable directory has no sensors
	for _, e := range entries[:min(len(entries), maxSensorFiles)] {
		typ, number, property, ok := splitSensor(e.Name())
		if !ok || e.IsDir() || !slices.Contains(sensorTypes, typ) {
			continue
		}
		f := &sensorFile{path: filepath.Join(dir, e.Name()), property: property}
		var buf [maxSys]byte
		b, err := attribute(f.path, &buf)
		cold := isCold(typ, property)
		if err != nil && (cold || property == "label") {
			continue
		}
		name := typ + strconv.Itoa(number)
		s := sensors[name]
		if s == nil {
			s = &sensor{name: name, typ: typ}
			sensors[name] = s
			c.sensors = append(c.sensors, s)
		}
		if property == "label" {
			s.label = new(clean(strings.Trim(string(b), "\n")))
			continue
		}
		f.parse(b, err)
		if typ == "beep_enable" { // its value is on or off
			f.ok = true
			if f.value != 1 {
				f.value = 0
			}
		}
		if i := slices.IndexFunc(s.files, func(o *sensorFile) bool { return o.property == property }); i >= 0 {
			c.hot = slices.DeleteFunc(c.hot, func(o *sensorFile) bool { return o == s.files[i] })
			s.files[i] = f
		} else {
			s.files = append(s.files, f)
		}
		if !cold {
			c.hot = append(c.hot, f)
		}
	}
}

// isCold reports whether a property is a setting or a limit.
func isCold(typ, property string) bool {
	switch typ {
	case "vrm", "beep_enable", "update_interval":
		return true
	}
	switch property {
	case "beep", "type", "offset", "div", "pulses", "cap", "cap_min", "cap_max", "min", "max", "crit", "lcrit", "emergency",
		"enable", "mode", "reset_history":
		return true
	}
	return strings.HasSuffix(property, "_hyst") || strings.HasPrefix(property, "rated_") ||
		strings.HasPrefix(property, "auto_point")
}

func (f *sensorFile) get() {
	var buf [maxSys]byte
	b, err := attribute(f.path, &buf)
	f.parse(b, err)
}

func (f *sensorFile) parse(b []byte, err error) {
	f.value, f.ok = parseFloat(bytes.Trim(b, "\n"))
	f.ok = f.ok && err == nil
}

func (c *chip) figures() []model.Sensor {
	sensors := make([]model.Sensor, len(c.sensors))
	total := 0
	for _, s := range c.sensors {
		total += len(s.files)
	}
	room := make([]model.Figure, 0, total)
	for i, s := range c.sensors {
		start := len(room)
		for _, f := range s.files {
			if f.ok {
				room = append(room, model.Figure{Name: f.property, Value: f.value})
			}
		}
		sensors[i] = model.Sensor{Name: s.name, Type: s.typ, Label: s.label, Figures: room[start:len(room):len(room)]}
	}
	return sensors
}

// splitSensor splits the name of a file: temp1_crit is number 1 of type temp, property crit. beep_enable has neither
// number nor property.
func splitSensor(file string) (typ string, number int, property string, ok bool) {
	first := strings.IndexAny(file, "0123456789")
	if first < 0 {
		return file, 0, "", file != ""
	}
	end := first
	for end < len(file) && '0' <= file[end] && file[end] <= '9' {
		end++
	}
	if first > 0 && (end == len(file) || file[end] == '_' && end+1 < len(file)) {
		number, err := strconv.Atoi(file[first:end])
		return file[:first], number, strings.TrimPrefix(file[end:], "_"), err == nil
	}
	// not used
	if under := strings.LastIndexByte(file[:first], '_'); under > 0 {
		return file[:under], 0, file[under+1:], true
	}
	return "", 0, "", false
}

// labelOf returns a name in node_exporter's format of labels: in lower case, with underscores for other characters.
func labelOf(name string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == ':', r == '_':
			return r
		}
		return '_'
	}, strings.ToLower(name)), "_")
}
