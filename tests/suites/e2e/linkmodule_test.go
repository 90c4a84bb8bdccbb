// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/source/link/module"
	"github.com/accelscope/accelscope/tests/fakes/eeprom"
)

// linkModule reads modules through the kernel, and compares the decoded values with the output of ethtool -m.
func (n node) linkModule(t *testing.T) {
	l := loadLinktest(t)
	recorded, err := eeprom.Read("../../../pkg/source/link/module/testdata/sr4.hex")
	if err != nil {
		t.Fatal(err)
	}
	recorded.SetFlags("SFF-8636")
	for _, c := range []struct {
		name, layout string
		memory       eeprom.Memory
		calls, bytes uint64
	}{
		{"recorded", "SFF-8636", recorded, 6, 220},
		{"LR4", "SFF-8636", eeprom.LR4(), 6, 220},
		{"SR8", "CMIS", eeprom.SR8(), 8, 230},
		{"DAC", "SFF-8636", eeprom.DAC(), 4, 112},
	} {
		t.Run(c.name, func(t *testing.T) {
			l.set("module/eeprom", string(c.memory))
			before := [...]uint64{l.get("calls/module"), l.get("module/bytes_read"), l.get("module/flag_bytes_read")}
			var m module.Memory
			if err := m.Refresh(readEEPROM(t, l.name)); err != nil {
				t.Fatal(err)
			}
			after := [...]uint64{l.get("calls/module"), l.get("module/bytes_read"), l.get("module/flag_bytes_read")}
			if want := [...]uint64{before[0] + c.calls, before[1] + c.bytes, before[2]}; after != want {
				t.Errorf("requests, bytes, bytes of flags: %v after %v, want %v", after, before, want)
			}
			if !l.memory().FlagsSet(c.layout) {
				t.Error("a flag was cleared")
			}
			printed := printedModule(sh(t, "ethtool", "-m", l.name))
			decoded := m.Decode()
			for key, want := range ethtoolValues(decoded) {
				if got := printed[key]; got != want && !strings.HasPrefix(got, want+" ") {
					t.Errorf("%s: ethtool prints %q, decoded %q", key, got, want)
				}
			}
			t.Logf("%d values are the same", len(ethtoolValues(decoded)))
			if l.memory().FlagsSet(c.layout) {
				t.Error("ethtool, which reads all flags, has not cleared them: the module does not resemble a real one")
			}
		})
	}
}

func (l linktest) memory() eeprom.Memory {
	l.t.Helper()
	memory, err := os.ReadFile(l.path("module/eeprom"))
	if err != nil {
		l.t.Fatal(err)
	}
	return memory
}

// Messages and attributes of ethtool netlink (include/uapi/linux/ethtool_netlink.h).
const (
	linkStateGet    = 6
	pauseGet        = 21
	moduleEEPROMGet = 31

	attrHeader        = 1 // nested: device name 2, flags 3
	flagStatistics    = 1 << 2
	attrLinkDownCount = 7
	attrPauseStats    = 5 // nested: storm events 4

	attrOffset     = 2
	attrLength     = 3
	attrPage       = 4
	attrI2CAddress = 6
	attrData       = 7
)

// askEthtool sends a request about a network interface, with vishvananda/netlink, and returns the attributes of the
// answer by type.
func askEthtool(t *testing.T, name string, command uint8, flags uint32, attrs ...*nl.RtAttr) (map[uint16][]byte, error) {
	t.Helper()
	family, err := netlink.GenlFamilyGet("ethtool")
	if err != nil {
		t.Fatal(err)
	}
	request := nl.NewNetlinkRequest(int(family.ID), 0)
	request.AddData(&nl.Genlmsg{Command: command, Version: 1})
	header := nl.NewRtAttr(attrHeader|unix.NLA_F_NESTED, nil)
	header.AddRtAttr(2, nl.ZeroTerminated(name))
	header.AddRtAttr(3, nl.Uint32Attr(flags))
	request.AddData(header)
	for _, a := range attrs {
		request.AddData(a)
	}
	answers, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	if len(answers) != 1 {
		return nil, fmt.Errorf("%d answers", len(answers))
	}
	return linkAttributes(answers[0][nl.SizeofGenlmsg:])
}

func linkAttributes(b []byte) (map[uint16][]byte, error) {
	list, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, err
	}
	values := map[uint16][]byte{}
	for _, a := range list {
		values[a.Attr.Type&0x3fff] = a.Value
	}
	return values, nil
}

// readEEPROM returns a function that reads the module of a network interface.
func readEEPROM(t *testing.T, name string) func(module.Read) ([]byte, error) {
	return func(r module.Read) ([]byte, error) {
		answer, err := askEthtool(t, name, moduleEEPROMGet, 0,
			nl.NewRtAttr(attrOffset, nl.Uint32Attr(uint32(r.Offset))), nl.NewRtAttr(attrLength, nl.Uint32Attr(uint32(r.Length))),
			nl.NewRtAttr(attrPage, []byte{r.Page}), nl.NewRtAttr(attrI2CAddress, []byte{0x50}))
		return answer[attrData], err
	}
}

// printedModule returns the values of ethtool -m by name, without the spaces in names.
func printedModule(out string) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(line, ":")
		values[strings.Join(strings.Fields(key), "")] = strings.TrimSpace(value)
	}
	return values
}

// ethtoolValues returns ethtool's output for a module, up to units that are left out here.
func ethtoolValues(m module.Module) map[string]string {
	values := map[string]string{
		"Vendorname": m.Vendor, "VendorPN": m.PartNumber, "Vendorrev": m.Revision, "VendorSN": m.Serial,
	}
	set := func(format string, scale float64, v *float64, name string, arguments ...any) {
		if v != nil {
			values[fmt.Sprintf(name, arguments...)] = fmt.Sprintf(format, *v*scale)
		}
	}
	const degrees, volts, milliamperes, milliwatts, meters = "%.2f degrees C", "%.4f V", "%.3f mA", "%.4f mW", "%.0fm"
	set(degrees, 1, m.Temperature, "Moduletemperature")
	set(volts, 1, m.Voltage, "Modulevoltage")
	set(meters, 1, m.Length, "Length(CopperorActivecable)")
	for i, lane := range m.Lanes {
		set(milliamperes, 1e3, lane.Bias, "Lasertxbiascurrent(Channel%d)", i+1)
		set(milliwatts, 1e3, lane.TransmitPower, "Transmitavgopticalpower(Channel%d)", i+1)
		set(milliwatts, 1e3, lane.ReceivePower, "Rcvrsignalavgopticalpower(Channel%d)", i+1)
	}
	threshold := func(name, format string, scale float64, l module.Threshold) {
		for kind, r := range map[string]*module.Range{"alarm": l.Alarm, "warning": l.Warning} {
			if r != nil {
				set(format, scale, &r.High, "%shigh%sthreshold", name, kind)
				set(format, scale, &r.Low, "%slow%sthreshold", name, kind)
			}
		}
	}
	threshold("Moduletemperature", degrees, 1, m.Thresholds.Temperature)
	threshold("Modulevoltage", volts, 1, m.Thresholds.Voltage)
	threshold("Laserbiascurrent", milliamperes, 1e3, m.Thresholds.Bias)
	threshold("Laseroutputpower", milliwatts, 1e3, m.Thresholds.TransmitPower)
	threshold("Laserrxpower", milliwatts, 1e3, m.Thresholds.ReceivePower)
	return values
}
