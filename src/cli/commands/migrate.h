// `gpulet migrate check`: which of NVIDIA's programs run on a node or in a cluster, and what a migration
// changes.
#pragma once

#include <string>

#include "migrate/report.h"

namespace gpulet::cli {

struct MigrateCheckOptions {
  bool cluster = false;         // inspect a cluster by its API server, else a node by its files
  std::string root = "/";       // mount point of the node's /
  std::string kubeconfig{};     // empty: as kubectl finds one
  std::string output = "text";  // text or json
};

// Exit code: 0 if nothing needs a decision, also if nothing of NVIDIA's was found; kNeedsAction if something
// does or could not be read; 1, after one line on standard error, if nothing could be read.
int run_migrate_check(const MigrateCheckOptions& options);

// The report as text, without control characters of what was found, and as JSON.
std::string migrate_text(const migrate::Report& report);
std::string migrate_json(const migrate::Report& report);

}  // namespace gpulet::cli
