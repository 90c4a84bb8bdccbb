// SPDX-License-Identifier: Apache-2.0

// Package gpu has the tests on a real NVIDIA GPU (make test-gpu). They compare the sensor with nvidia-smi, the kernel,
// and programs that count their own actions. They change no setting of the GPU, and reset nothing.
package gpu
