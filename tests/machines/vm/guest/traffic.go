// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"fmt"
)

// Traffic returns two pods, default/train-0 and default/train-1, that exchange RDMA writes over rxe0 until they are
// deleted: train-1 writes to train-0, in rounds of 5 seconds with new connections.
func Traffic() (server, client Container) {
	// -F: perftest does not trust the clock of an emulated CPU.
	const write = "ib_write_bw -F -d rxe0 -x 1 -D 5 -s 65536"
	server = PodContainer("default", "train-0", "worker", "bash", "-c", "while :; do "+write+"; done")
	client = PodContainer("default", "train-1", "worker", "bash", "-c",
		"while :; do "+write+" 10.70.0.1 || sleep 0.2; done")
	server.Devices = []string{"/dev/infiniband/uverbs0"}
	client.Devices = server.Devices
	return server, client
}

// RunTraffic starts the two pods of Traffic.
func (c *Containerd) RunTraffic(ctx context.Context) (server, client Container, err error) {
	server, client = Traffic()
	for _, o := range []Container{server, client} {
		if _, err := c.Run(ctx, o); err != nil {
			return server, client, fmt.Errorf("pod %s: %w", o.Labels["io.kubernetes.pod.name"], err)
		}
	}
	return server, client, nil
}
