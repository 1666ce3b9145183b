// Where the API server is for a command that a person calls: as kubectl looks for it.
#pragma once

#include <string>

#include "base/result.h"
#include "cluster/access.h"

namespace gpulet::cli {

// From `kubeconfig`, else the first file that KUBECONFIG names, else ~/.kube/config, else as a Pod is told.
// Errors: those of cluster/access.h; kFailedPrecondition where there is none of them.
Result<cluster::Access> kubectl_access(const std::string& kubeconfig);

}  // namespace gpulet::cli
