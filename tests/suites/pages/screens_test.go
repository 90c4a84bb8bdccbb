// SPDX-License-Identifier: Apache-2.0

//go:build screens

package pages

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/page"

	"github.com/accelscope/accelscope/tests/fakes/fakenode"
)

// TestScreens takes the documentation's pictures into the directory of the environment variable.
func TestScreens(t *testing.T) {
	dir := os.Getenv("ACCELSCOPE_SCREENS")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := serve(t, fakenode.Workloads())
	s.change(func(n *fakenode.Node) { n.Down[6] = true })
	for _, scheme := range []string{"light", "dark"} {
		for name, shot := range map[string]struct {
			width  int64
			height float64 // at most
			url    string
		}{
			"first": {1280, 1500, views(s)[0]}, "node": {1280, 5000, views(s)[0]}, "workload": {1280, 3000, views(s)[1]},
			"device": {1280, 3000, views(s)[2]}, "phone": {390, 3000, views(s)[0]}, "devices": {1280, 3000, s.URL + "/device"},
		} {
			b := open(t, s.URL, shot.width, 900)
			b.scheme(scheme)
			b.visit(shot.url)
			b.shoot(dir, name+"-"+scheme, shot.width, shot.height)
		}
	}
}

func (b *tab) shoot(dir, name string, width int64, height float64) {
	b.Helper()
	quality, all := int64(80), true
	picture := call(b, page.CaptureScreenshot, page.CaptureScreenshotParams{
		Format: page.CaptureScreenshotFormatWebp, Quality: &quality, CaptureBeyondViewport: &all,
		Clip: &page.Viewport{Width: float64(width), Height: math.Min(height, eval[float64](b, `document.documentElement.scrollHeight`)), Scale: 1},
	}).Data
	if err := os.WriteFile(filepath.Join(dir, name+".webp"), picture, 0o644); err != nil {
		b.Fatal(err)
	}
}
