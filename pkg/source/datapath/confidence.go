// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"math"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
)

// confidence is how well the windows of a group show what a series counted. Each window is
// an observation of the rate in the period that it stands for. Old windows lose weight, as
// the load changes.
type confidence struct {
	// pending is the estimate of the period that ends now, ratio the part of the period that
	// was observed, weight its CPU time, or its length where that is unknown.
	pending, ratio, weight float64
	period                 time.Duration
	// The following are weighted sums over the windows: of 1, of the weights of periods, of what
	// was observed of them and of their squares, of estimates, and of squared rates times
	// periods.
	windows, seconds, observed, squares, counted, rates float64
	// last is the factor that the last window left of older ones; 0: no period ended at this step.
	last float64
}

const (
	// confidenceTime is the time in which a window loses most of its weight.
	confidenceTime = 5 * time.Minute
	// maxError is the relative standard error, or the part of the time that is not observed, above
	// which an estimate is absent.
	maxError = 0.25
)

// studentT are the 97.5 % quantiles of Student's t-distribution with 1 to 4 degrees of freedom.
var studentT = [...]float64{12.71, 4.30, 3.18, 2.78}

// observe adds what a context counted in a period, scaled.
func (c *confidence) observe(n float64, how budget.Sampling) {
	c.pending += n
	c.period, c.ratio = how.Period, how.Ratio
	c.weight += cmp.Or(how.Weight, how.Period.Seconds())
}

// endPeriod adds the observations of all contexts as one window.
func (c *confidence) endPeriod() {
	if c.last = 0; c.period == 0 {
		return
	}
	t, n := c.weight, c.pending
	keep := math.Exp(-c.period.Seconds() / confidenceTime.Seconds())
	c.period, c.pending, c.weight, c.last = 0, 0, 0, keep
	c.observed = c.observed*keep + t*c.ratio
	c.windows, c.seconds, c.squares = c.windows*keep+1, c.seconds*keep+t, c.squares*keep*keep+t*t
	c.counted, c.rates = c.counted*keep+n, c.rates*keep+n*n/t
}

// relativeError returns the relative standard error of the sum of the estimates, of which
// the observed part has no error. It is infinite while it is not known.
func (c *confidence) relativeError() float64 {
	if c.windows <= 1 || c.counted == 0 {
		return math.Inf(1)
	}
	mean := c.counted / c.seconds
	variance := max(c.rates/c.seconds-mean*mean, 0) * c.windows / (c.windows - 1)
	return math.Sqrt(variance*c.squares*(1-c.observed/c.seconds)) / c.counted
}

// sufficient reports whether the estimate is shown. A series without windows has no
// scaled counts. Of few windows the standard error is uncertain itself: they must agree so
// much better that the confidence interval is not wider than that of five windows.
func (c *confidence) sufficient() bool {
	if c.windows == 0 || c.observed >= (1-maxError)*c.seconds {
		return true
	}
	last := len(studentT) - 1
	n := min(int(math.Round(c.windows))-2, last)
	return n >= 0 && c.relativeError() <= maxError*studentT[last]/studentT[n]
}

// predicts reports whether the rate of the windows may be used for times without windows.
func (c *confidence) predicts() bool { return c.windows > 0 && c.sufficient() }

// sampling adds the confidence to a row.
func (c *confidence) sampling(row model.Sampling) model.Sampling {
	row.Windows, row.RelativeError, row.Uncertain = c.windows, c.relativeError(), !c.sufficient()
	return row
}
