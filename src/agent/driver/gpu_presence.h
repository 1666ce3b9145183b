// Whether a node may have an NVIDIA GPU, asked where no driver can be opened: the agent also runs on nodes
// that nobody has labelled, and is quiet on those without a GPU.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace gpulet::agent {

// False only on evidence: the PCI bus can be listed and has no display controller of NVIDIA's, and the kernel
// has neither the driver's control node, nor the signs of WSL or Tegra. `roots`: where sys/ and dev/
// may be, in order, as driver_roots(); the first with a PCI bus counts. Reads two small files per PCI
// function. Source: PCI Code and ID Assignment (vendor 10de, base class 03); facts/device-plugin 1.
bool may_have_gpu(const std::vector<std::string>& roots);

// Why the driver cannot be opened: with the platform first where gpulet does not serve it
// (inventory/platform.h). `roots`: as above.
Error explain_driver_error(const Error& error, const std::vector<std::string>& roots);

}  // namespace gpulet::agent
