// Which file of a folder is this node's configuration. The rules are those of NVIDIA's config-manager; a
// label that names no file is said and passed over, where config-manager ends and takes its Pod with it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file_watch.h"
#include "base/inotify.h"
#include "base/loop.h"
#include "base/result.h"
#include "config/rules.h"

namespace gpulet::config {

struct ConfigChoice {
  enum class Kind {
    kNothing,  // no rule gives one; `problem` says why
    kEmpty,    // the empty config, because the strategy "empty" says so
    kFile,
  };
  Kind kind = Kind::kNothing;
  std::string name;                    // of the file in the folder; empty unless kFile
  std::optional<std::string> problem;  // one line: what the label or the default names that is not there

  // The file's path, or empty.
  std::string path(const std::string& folder) const;
  friend bool operator==(const ConfigChoice&, const ConfigChoice&) = default;
};

// "named", "single" or "empty". Errors: kInvalidArgument.
Result<FallbackStrategy> fallback_strategy(const std::string& text);

// A node's choice among `names`: what its label says; with no label (an empty value is none) the default
// config; with no default the first fallback that gives one: the file "default", the only file there is, the
// empty config. Where the label, or the default, names no file, `problem` says so and the next in that order
// is used. Pure.
ConfigChoice choose(const NodeConfig& node, const std::optional<std::string>& label_value,
                    const std::vector<std::string>& names);

// The names in `folder` that may be a config, sorted: what leads to a file and does not begin with "..", as a
// mounted ConfigMap's own entries do. Errors: kNotFound, kPermissionDenied, kIo.
Result<std::vector<std::string>> config_names(const std::string& folder);

// choose() among what is in the folder now. A folder that cannot be read has no names, and `problem` says
// why.
ConfigChoice choose_in_folder(const NodeConfig& node, const std::optional<std::string>& label_value);

// The choice, kept up with the folder and the label. Loop's thread only.
class ConfigFolder {
 public:
  // Called from the loop after the chosen path, the problem, or the chosen file's content may have changed.
  // `path` is empty where there is no file (choice() tells the empty config from nothing).
  using Changed = std::function<void(const std::string& path, const std::optional<std::string>& problem)>;

  // Tells nothing before the first set_label. The folder need not exist yet.
  // Errors: kIo where the kernel has no inotify instance or watch left.
  static Result<std::unique_ptr<ConfigFolder>> start(Loop& loop, NodeConfig node, Changed changed);

  ~ConfigFolder() = default;
  ConfigFolder(const ConfigFolder&) = delete;

  // The value of the node's label, nullopt where it has none. The first call is always answered by `changed`,
  // a later one only where it makes a difference.
  void set_label(std::optional<std::string> value);

  const ConfigChoice& choice() const { return choice_; }

 private:
  ConfigFolder(Loop& loop, NodeConfig node, Changed changed, std::unique_ptr<InotifyWatch> inotify);
  Status arm();
  void look_again(Duration delay);
  void look();
  void watch_file(const std::string& path);

  Loop& loop_;
  NodeConfig node_;
  Changed changed_;
  std::unique_ptr<InotifyWatch> inotify_;
  Subscription entries_;                     // names that come and go in the folder
  std::unique_ptr<FileWatch> folder_watch_;  // the folder itself, and the way to it
  std::unique_ptr<FileWatch> file_watch_;    // the chosen file
  std::string watched_path_;
  Subscription settling_;
  bool label_known_ = false;
  bool content_changed_ = true;  // since `changed_` was last called
  std::optional<std::string> label_;
  ConfigChoice choice_;
};

}  // namespace gpulet::config
