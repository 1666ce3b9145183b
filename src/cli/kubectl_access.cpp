#include "cli/kubectl_access.h"

#include <unistd.h>

#include "base/text.h"
#include "config/load.h"

namespace gpulet::cli {

Result<cluster::Access> kubectl_access(const std::string& kubeconfig) {
  auto environment = config::process_environment();
  if (!kubeconfig.empty()) return cluster::access_from_kubeconfig(kubeconfig);
  if (!environment["KUBECONFIG"].empty()) {
    return cluster::access_from_kubeconfig(text::split(environment["KUBECONFIG"], ':').front());
  }
  const std::string file = environment["HOME"] + "/.kube/config";
  if (::access(file.c_str(), R_OK) == 0) return cluster::access_from_kubeconfig(file);
  GPULET_TRY_ASSIGN(auto inside,
                    cluster::in_cluster_access(environment, cluster::kServiceAccount, cluster::OfNode::kNo));
  if (inside) return *inside;
  return fail(Code::kFailedPrecondition,
              "there is no kubeconfig: --kubeconfig FILE or the variable KUBECONFIG says where one is");
}

}  // namespace gpulet::cli
