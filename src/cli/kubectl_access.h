// Where the API server is for a command that a person calls: as kubectl looks for it.
#pragma once

#include <string>

#include "base/result.h"
#include "cluster/access.h"

namespace gpulet::cli {

// From `kubeconfig`, else the first file that KUBECONFIG names, else ~/.kube/config, else as a Pod is told. A
// program that the file names (`exec`) is run here, with this process' environment, and waited for
// (cluster/exec_plugin.h has the limits); it may ask the person at the terminal. So it is for what a person
// starts: a service takes cluster::find_access, which runs nothing. Errors: those of cluster/access.h and of
// the program; kFailedPrecondition where there is none of the files.
Result<cluster::Access> kubectl_access(const std::string& kubeconfig);

}  // namespace gpulet::cli
