// SPDX-License-Identifier: Apache-2.0

// Package gpu has the tests on a real NVIDIA GPU, which few machines have: make test-gpu. They compare what the sensor exports with
// nvidia-smi, with the kernel, and with programs that count what they do. They change no setting of the GPU, and reset nothing.
package gpu
