// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Running is a running pod of a translation.
type Running struct {
	*Translation
	Pod, ID string // ids of the sandbox and of the container

	cri *CRI
}

// Load imports an archive of images.
func (c *Containerd) Load(ctx context.Context, archive string) error {
	_, err := c.Ctr(ctx, "images", "import", archive)
	return err
}

// MakePod creates the sandbox of a translation, without its container.
func (c *CRI) MakePod(ctx context.Context, t *Translation) (*Running, error) {
	pod, err := c.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: t.Sandbox})
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", t.Sandbox.GetMetadata().GetName(), err)
	}
	return &Running{Translation: t, Pod: pod.GetPodSandboxId(), cri: c}, nil
}

// RunTranslation creates the pod and starts its container.
func (c *CRI) RunTranslation(ctx context.Context, t *Translation) (*Running, error) {
	r, err := c.MakePod(ctx, t)
	if err != nil {
		return nil, err
	}
	if r.ID, err = c.create(ctx, r, t); err != nil {
		return r, err
	}
	return r, c.Start(ctx, r.ID)
}

func (c *CRI) create(ctx context.Context, pod *Running, t *Translation) (id string, err error) {
	made, err := c.Runtime.CreateContainer(ctx,
		&cri.CreateContainerRequest{PodSandboxId: pod.Pod, Config: t.Container, SandboxConfig: pod.Sandbox})
	if err != nil {
		return "", fmt.Errorf("create: %w", err)
	}
	return made.GetContainerId(), nil
}

// RunToEnd runs the container of a translation in an existing sandbox, and returns its output. A failure of the
// container is an error.
func (c *CRI) RunToEnd(ctx context.Context, pod *Running, t *Translation) (string, error) {
	id, err := c.create(ctx, pod, t)
	if err != nil {
		return "", err
	}
	if err := c.Start(ctx, id); err != nil {
		return "", err
	}
	code, err := c.Wait(ctx, id)
	if err != nil {
		return "", err
	}
	out := printed(t.logFile())
	if err := os.Remove(t.logFile()); err != nil {
		return "", err
	}
	if code != 0 {
		err = fmt.Errorf("exit status %d", code)
	}
	return out, errors.Join(err, c.Remove(ctx, id))
}

// printed extracts the standard output from a log of the CRI: TIME stdout P|F TEXT.
func printed(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		part := strings.SplitN(line, " ", 4)
		switch {
		case len(part) < 4 || part[1] != "stdout":
		case part[2] == "P":
			out.WriteString(strings.TrimSuffix(part[3], "\n"))
		default:
			out.WriteString(part[3])
		}
	}
	return out.String()
}

// Log returns the output of the container.
func (r *Running) Log() string {
	text, err := os.ReadFile(r.logFile())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Probe runs a probe once, from the node like the kubelet.
func (r *Running) Probe(ctx context.Context, kind string) error {
	p := r.Probes[kind]
	timeout := max(time.Duration(p.TimeoutSeconds), 1) * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	scheme := "http"
	if p.HTTPGet.Scheme == corev1.URISchemeHTTPS {
		scheme = "https"
	}
	url := fmt.Sprintf("%s://127.0.0.1:%d%s", scheme, p.HTTPGet.Port.IntVal, p.HTTPGet.Path)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode >= 400 {
		return fmt.Errorf("%s: %s", url, res.Status)
	}
	return nil
}

// WaitReady waits until a container is ready, like the kubelet: it repeats the startup probe up to its failure limit,
// then the readiness probe.
func (r *Running) WaitReady(ctx context.Context) error {
	period := func(p *corev1.Probe) time.Duration { return max(time.Duration(p.PeriodSeconds), 1) * time.Second }
	startup := r.Probes["startup"]
	for failed := int32(1); ; failed++ {
		err := r.Probe(ctx, "startup")
		if err == nil {
			break
		}
		if failed >= startup.FailureThreshold {
			return fmt.Errorf("startup probe: %w", err)
		}
		time.Sleep(period(startup))
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Second) { // the kubelet would wait for a period
		err := r.Probe(ctx, "readiness")
		if err == nil {
			return r.Probe(ctx, "liveness")
		}
		if time.Now().After(end) {
			return fmt.Errorf("readiness probe: %w", err)
		}
	}
}

// End stops the container within its grace time, and removes the pod. It returns the exit code.
func (r *Running) End(ctx context.Context) (code uint32, took time.Duration, err error) {
	begin := time.Now()
	if err := r.cri.Stop(ctx, r.ID, r.Grace); err != nil {
		return 0, 0, err
	}
	took = time.Since(begin)
	if code, err = r.cri.Wait(ctx, r.ID); err != nil {
		return code, took, err
	}
	return code, took, r.cri.RemovePod(ctx, &Pod{ID: r.Pod})
}
