// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fixtures"
)

// gpus is the number of GPUs that the node has according to the fake of NVIDIA's library. The node also has the HCAs of a fake sysfs.
const gpus = 4

const sensorURL = "http://127.0.0.1:9847"

// sensor is accelscope on the node, with the token of the service account that the manifests make.
type sensor struct {
	*daemon
	hcas []fixtures.HCA
}

// newSensor prepares a sensor with its fake hardware, and arguments besides those that all tests need.
func (c *cluster) newSensor(ctx context.Context, binary, library string, args ...string) (*sensor, error) {
	dir, err := os.MkdirTemp(c.dir, "sensor-")
	if err != nil {
		return nil, err
	}
	fake, err := fixtures.Write(filepath.Join(dir, "fake"), fixtures.Options{ComputeHCAs: 1, VFs: 2, Seed: 1})
	if err != nil {
		return nil, err
	}
	scenario, err := nvml.New(dir)
	if err != nil {
		return nil, err
	}
	for n := range gpus {
		scenario.AddH100(n)
		if err := errors.Join(nvml.Bind(fake.SysFS(), fake.ProcFS(), n), makeNode(fmt.Sprint("/dev/nvidia", n))); err != nil {
			return nil, err
		}
	}
	if err := scenario.Write(); err != nil {
		return nil, err
	}
	for _, h := range fake.HCAs {
		if err := makeNode("/dev/infiniband/" + h.CharDevice); err != nil {
			return nil, err
		}
	}
	token := filepath.Join(dir, "token")
	if err := c.writeToken(ctx, token); err != nil {
		return nil, err
	}
	d := c.daemon("accelscope", "run", "--web.listen-address=127.0.0.1:9847", "--path.sysfs="+fake.SysFS(),
		"--node.name="+nodeName, "--node.ip="+nodeIP, "--kubelet.token-file="+token, "--kubelet.ca-file="+c.pki("ca.crt"),
		"--kubelet.interval=1s", "--container.scope=all", "--gpu.nvml-library="+library, "--gpu.control-socket="+filepath.Join(dir, "control"),
		"--state.dir="+filepath.Join(dir, "state"),
		"--no-collector.probe", "--no-collector.access", "--no-collector.link", "--no-collector.kernellog", "--no-collector.node")
	d.args = append(d.args, args...)
	d.args[0], d.env = binary, scenario.Environment()
	return &sensor{daemon: d, hcas: fake.HCAs}, nil
}

// writeToken writes a token of accelscope's service account, as the kubelet does for a pod.
func (c *cluster) writeToken(ctx context.Context, path string) error {
	token, err := c.kubectl(ctx, "--namespace=accelscope", "create", "token", "accelscope")
	return errors.Join(err, write(path, token))
}

// makeNode makes a device node of a GPU or HCA: a copy of /dev/null, which stands in for it.
func makeNode(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
	if errors.Is(err, unix.EEXIST) { // of an earlier sensor
		return nil
	}
	return err
}

// families are the metrics of one scrape.
type families map[string]*dto.MetricFamily

func scrape(ctx context.Context) (families, error) {
	body, err := request(ctx, http.DefaultClient, sensorURL+"/metrics")
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(bytes.NewReader(body))
}

// values returns the values of a family by labels, joined by spaces.
func (f families) values(name string, labels ...string) map[string]float64 {
	out := map[string]float64{}
	for _, m := range f[name].GetMetric() {
		of := map[string]string{}
		for _, l := range m.GetLabel() {
			of[l.GetName()] = l.GetValue()
		}
		key := make([]string, 0, len(labels))
		for _, l := range labels {
			key = append(key, of[l])
		}
		out[strings.Join(key, " ")] += m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue()
	}
	return out
}
