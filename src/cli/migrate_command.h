// `gpulet migrate check`: what of NVIDIA's programs runs on a node or in a cluster, and what becomes of it.
#pragma once

#include <string>

namespace gpulet::cli {

struct MigrateCheckOptions {
  bool cluster = false;         // a cluster by its API server; else a node by its files
  std::string root = "/";       // where the node's root is seen
  std::string kubeconfig{};     // empty: as kubectl looks for one
  std::string output = "text";  // text or json
};

// Exit code: 0 when there is nothing to decide first (nothing of NVIDIA's found is that too); 3 when there
// is, or when something could not be read; 1 when nothing could be looked at, said in one line on standard
// error.
int migrate_check(const MigrateCheckOptions& options);

}  // namespace gpulet::cli
