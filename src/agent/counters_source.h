// Which metrics are served: out of a file, or the key `metrics` of a ConfigMap, each followed as it changes.
// What is bad is told once, and the counters before it stay in force; before the first, dcgm-exporter's
// defaults. Loop's thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/reporter.h"
#include "base/file_watch.h"
#include "cluster/object_watch.h"
#include "metrics/counters.h"

namespace gpulet::agent {

class CountersSource {
 public:
  // `changed`: other counters are in force. Not from inside a call.
  CountersSource(Loop& loop, Reporter& reporter, std::function<void()> changed);

  // `config_map`: "namespace:name", counts over the file; both empty: the defaults.
  void apply(const std::string& file, const std::string& config_map);
  // The API server, once it is known; a ConfigMap needs get, list and watch on configmaps in its namespace.
  void set_access(cluster::Access access);

  const metrics::Counters& counters() const { return counters_; }

 private:
  void follow();
  void follow_file();
  void follow_config_map();
  void read_file_again();
  void use(const Result<metrics::Counters>& counters, const std::string& where);

  Loop& loop_;
  Reporter& reporter_;
  std::function<void()> changed_;
  std::optional<cluster::Access> access_;
  std::string file_, config_map_;
  metrics::Counters counters_ = metrics::default_counters();
  std::string error_;  // that was told
  std::unique_ptr<FileWatch> file_watch_;
  std::unique_ptr<cluster::ObjectWatch> config_map_watch_;
};

}  // namespace gpulet::agent
