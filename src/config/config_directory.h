// Selects a node's config file in a directory by the rules of NVIDIA's config-manager. If the label names no
// file, gpulet reports that and falls back; config-manager exits.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file_watch.h"
#include "base/loop.h"
#include "base/result.h"
#include "config/gpulet_settings.h"

namespace gpulet::config {

struct ConfigChoice {
  enum class Kind {
    kNothing,  // no rule selects a config; `problem` has the reason
    kEmpty,    // the empty config, by the strategy "empty"
    kFile,
  };
  Kind kind = Kind::kNothing;
  std::string name;                    // the file in the directory; empty unless kFile
  std::optional<std::string> problem;  // one line: the label or the default names a missing file

  // The file's path; empty unless kFile.
  std::string config_path(const std::string& directory) const;
  friend bool operator==(const ConfigChoice&, const ConfigChoice&) = default;
};

// "named", "single" or "empty". Errors: kInvalidArgument.
Result<FallbackStrategy> parse_fallback_strategy(const std::string& text);

// Chooses among `names`, in this order: the label's value (empty: no label); the default config; the first
// fallback that yields one: the file "default", the only file, the empty config. If the label or the default
// names a missing file, sets `problem` and uses the next. Pure.
ConfigChoice choose_config(const NodeConfig& node, const std::optional<std::string>& label_value,
                           const std::vector<std::string>& names);

// The sorted names of possible configs in `directory`: files whose names do not begin with "..", as the
// internal entries of a mounted ConfigMap do. Errors: kNotFound, kPermissionDenied, kIo.
Result<std::vector<std::string>> list_config_names(const std::string& directory);

// choose_config() with the current names in the directory. If the directory cannot be read, `problem` has the
// reason.
ConfigChoice choose_config_in_directory(const NodeConfig& node,
                                        const std::optional<std::string>& label_value);

// Re-evaluates the choice when the directory, the chosen file or the label changes. Loop's thread only.
class ConfigDirectoryWatcher {
 public:
  // Called from the loop after the chosen path, the problem or the content of the chosen file may have
  // changed. `path` is empty without a file; current_choice() distinguishes the empty config from none.
  using Changed = std::function<void(const std::string& path, const std::optional<std::string>& problem)>;

  // Reports nothing before the first set_label. The directory need not exist. Errors: kIo if the kernel has
  // no inotify instance or watch left.
  static Result<std::unique_ptr<ConfigDirectoryWatcher>> watch_directory(Loop& loop, NodeConfig node,
                                                                         Changed changed);

  ~ConfigDirectoryWatcher() = default;
  ConfigDirectoryWatcher(const ConfigDirectoryWatcher&) = delete;

  // Sets the value of the node's label; nullopt: no label. The first call always leads to `changed`, later
  // ones only if the choice changes.
  void set_label(std::optional<std::string> value);

  const ConfigChoice& current_choice() const { return choice_; }

 private:
  ConfigDirectoryWatcher(Loop& loop, NodeConfig node, Changed changed);
  Status watch_entries();
  void schedule_reevaluation(Duration delay);
  void reevaluate();
  void watch_file(const std::string& path);

  Loop& loop_;
  NodeConfig node_;
  Changed changed_;
  Subscription entries_;                          // entries of the directory
  std::unique_ptr<FileWatcher> directory_watch_;  // the directory itself and its path
  std::unique_ptr<FileWatcher> file_watch_;       // the chosen file
  std::string watched_path_;
  Subscription settling_;
  bool label_known_ = false;
  bool content_changed_ = true;  // since `changed_` was last called
  std::optional<std::string> label_;
  ConfigChoice choice_;
};

}  // namespace gpulet::config
