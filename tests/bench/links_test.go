// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"
)

func TestSumRTNL(t *testing.T) {
	const trace = `# tracer: nop
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
      accelscope-412     [000] d....    10.000100: got: (ethnl_default_doit+0x11/0x22 <- rtnl_lock)
 a process-x 1-7         [001] d....    10.000200: got: (devinet_ioctl+0x1/0x2 <- rtnl_lock)
      accelscope-412     [000] .....    10.000350: release: (rtnl_unlock+0x0/0x10)
           <...>-413     [000] d....    11.500000: got: (dev_ioctl+0x1/0x2 <- rtnl_lock)
           <...>-413     [001] .....    11.501000: release: (rtnl_unlock+0x0/0x10)
      accelscope-412     [000] .....    12.000000: release: (rtnl_unlock+0x0/0x10)
 a process-x 1-7         [001] .....    20.000000: release: (rtnl_unlock+0x0/0x10)
`
	got := sumRTNL(trace, map[string]bool{"412": true, "413": true})
	got.sum, got.longest = got.sum.Round(time.Microsecond), got.longest.Round(time.Microsecond)
	if want := (rtnlTime{2, 1250 * time.Microsecond, time.Millisecond}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
