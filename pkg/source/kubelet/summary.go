// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"io"

	"github.com/accelscope/accelscope/pkg/model"
)

const summaryPath = "/stats/summary"

// storageJSON holds the used fields of a FsStats, in bytes.
type storageJSON struct {
	Used      *uint64 `json:"usedBytes"`
	Available *uint64 `json:"availableBytes"`
	Capacity  *uint64 `json:"capacityBytes"`
}

// nodeJSON holds the used field of NodeStats: the file system of the kubelet's root.
type nodeJSON struct {
	FS *storageJSON `json:"fs"`
}

// podStatsJSON holds the used fields of PodStats.
type podStatsJSON struct {
	Pod struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
		UID       string `json:"uid"`
	} `json:"podRef"`
	Ephemeral *storageJSON `json:"ephemeral-storage"`
}

// summary requests the ephemeral storage of the node and its use by pods.
func (c *client) summary(ctx context.Context) (*facts, error) {
	return c.get(ctx, summaryPath, decodeSummary)
}

// decodeSummary parses a Summary (stats/v1alpha1). Values that the kubelet has not measured yet are left out.
func decodeSummary(body io.Reader) (*facts, error) {
	f := &facts{Snapshot: model.Snapshot{PodStorage: []model.PodStorage{}}}
	s := newStream(body)
	listed := false
	err := s.object(func(field string) error {
		switch field {
		case "node":
			var n nodeJSON
			ok, err := s.take(&n)
			if fs := n.FS; ok && fs != nil && fs.Used != nil && fs.Available != nil && fs.Capacity != nil {
				f.NodeStorage = &model.NodeStorage{
					UsedBytes: *fs.Used, AvailableBytes: *fs.Available, CapacityBytes: *fs.Capacity,
				}
			}
			return err
		case "pods":
			listed = true
			return s.array(func() error {
				var p podStatsJSON
				ok, err := s.take(&p)
				if ref := &p.Pod; ok && ref.UID != "" && p.Ephemeral != nil && p.Ephemeral.Used != nil {
					f.PodStorage = append(f.PodStorage, model.PodStorage{
						UID: ref.UID, Namespace: ref.Namespace, Pod: ref.Name, UsedBytes: *p.Ephemeral.Used,
					})
				}
				if len(f.PodStorage) > maxFacts {
					return errTooMany
				}
				return err
			})
		}
		return s.skip()
	})
	return s.result(f, listed, err)
}
