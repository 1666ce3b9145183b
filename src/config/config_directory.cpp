#include "config/config_directory.h"

#include <dirent.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "base/text.h"

namespace gpulet::config {
namespace {

constexpr std::uint32_t kEntryEvents =
    IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;
constexpr const char* kNamedFallback = "default";
constexpr std::size_t kMaxNamesListed = 10;

// A file name inside the directory that is not internal to a ConfigMap mount.
bool is_config_name(const std::string& name) {
  return !name.empty() && name != "." && !text::starts_with(name, "..") &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

std::string available_names_text(const std::vector<std::string>& names) {
  if (names.empty()) return "there is none";
  if (names.size() == 1) return "there is " + names.front();
  const auto count = std::min(names.size(), kMaxNamesListed);
  std::string text = "there are " + text::join(std::span(names).first(count), ", ");
  if (count < names.size()) text += " and " + std::to_string(names.size() - count) + " more";
  return text;
}

struct ConfigNames {
  std::vector<std::string> all;  // sorted
  bool contains_name(const std::string& name) const { return std::ranges::binary_search(all, name); }
};

ConfigChoice file_choice(std::string name) {
  return {.kind = ConfigChoice::Kind::kFile, .name = std::move(name), .problem = std::nullopt};
}

ConfigChoice fall_back(const std::vector<FallbackStrategy>& fallbacks, const ConfigNames& names) {
  for (const auto fallback : fallbacks) {
    switch (fallback) {
      case FallbackStrategy::kNamed:
        if (names.contains_name(kNamedFallback)) return file_choice(kNamedFallback);
        break;
      case FallbackStrategy::kSingle:
        if (names.all.size() == 1) return file_choice(names.all.front());
        break;
      case FallbackStrategy::kEmpty:
        return {.kind = ConfigChoice::Kind::kEmpty, .name = {}, .problem = std::nullopt};
    }
  }
  return {};
}

std::string used(const ConfigChoice& choice) {
  switch (choice.kind) {
    case ConfigChoice::Kind::kFile:
      return "using " + choice.name;
    case ConfigChoice::Kind::kEmpty:
      return "using the empty config";
    case ConfigChoice::Kind::kNothing:
      break;
  }
  return "nothing to fall back on";
}

std::string joined(const std::string& directory, const std::string& name) {
  return !directory.empty() && directory.back() == '/' ? directory + name : directory + "/" + name;
}

}  // namespace

std::string ConfigChoice::config_path(const std::string& directory) const {
  return kind == Kind::kFile ? joined(directory, name) : std::string();
}

Result<FallbackStrategy> parse_fallback_strategy(const std::string& text) {
  if (text == "named") return FallbackStrategy::kNamed;
  if (text == "single") return FallbackStrategy::kSingle;
  if (text == "empty") return FallbackStrategy::kEmpty;
  return fail(Code::kInvalidArgument,
              "\"" + text + "\" is no fallback strategy; they are named, single and empty");
}

ConfigChoice choose_config(const NodeConfig& node, const std::optional<std::string>& label_value,
                           const std::vector<std::string>& names) {
  ConfigNames there;
  std::ranges::copy_if(names, std::back_inserter(there.all), is_config_name);
  std::ranges::sort(there.all);
  const std::string label = label_value.value_or("");
  ConfigChoice choice;
  // An empty directory is a ConfigMap that is not mounted yet, not a reason for the empty config.
  if (there.all.empty()) {
    choice.problem = "there is no config in " + node.directory;
    if (!label.empty()) *choice.problem += " for the label " + node.label + "=" + label;
    return choice;
  }
  std::vector<std::string> missing;
  if (!label.empty()) {
    if (there.contains_name(label)) return file_choice(label);
    missing.push_back("the label " + node.label + "=" + label + " names no config in " + node.directory);
  }
  if (!node.default_config.empty() && there.contains_name(node.default_config)) {
    choice = file_choice(node.default_config);
  } else {
    if (!node.default_config.empty()) {
      missing.push_back("the default config " + node.default_config +
                        (missing.empty() ? " is not in " + node.directory : " is not there either"));
    }
    choice = fall_back(node.fallbacks, there);
  }
  if (!missing.empty()) {
    choice.problem =
        text::join(missing, " and ") + "; " + available_names_text(there.all) + "; " + used(choice);
  } else if (choice.kind == ConfigChoice::Kind::kNothing) {
    choice.problem = "the node has no label " + node.label +
                     ", there is no default config, and no fallback strategy finds one in " + node.directory +
                     "; " + available_names_text(there.all);
  }
  return choice;
}

Result<std::vector<std::string>> list_config_names(const std::string& directory) {
  DIR* const stream = opendir(directory.c_str());
  if (!stream) return fail(errno_error("cannot be read", errno, directory));
  std::vector<std::string> names;
  int error = 0;
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(stream);
    if (!entry) {
      error = errno;
      break;
    }
    std::string name = entry->d_name;
    struct stat status{};
    if (is_config_name(name) && fstatat(dirfd(stream), name.c_str(), &status, 0) == 0 &&
        !S_ISDIR(status.st_mode)) {
      names.push_back(std::move(name));
    }
  }
  closedir(stream);
  if (error != 0) return fail(errno_error("cannot be read", error, directory));
  std::ranges::sort(names);
  return names;
}

ConfigChoice choose_config_in_directory(const NodeConfig& node,
                                        const std::optional<std::string>& label_value) {
  const auto names = list_config_names(node.directory);
  if (names) return choose_config(node, label_value, *names);
  return {.kind = ConfigChoice::Kind::kNothing, .name = {}, .problem = names.error().full_message()};
}

ConfigDirectoryWatcher::ConfigDirectoryWatcher(Loop& loop, NodeConfig node, Changed changed)
    : loop_(loop), node_(std::move(node)), changed_(std::move(changed)) {}

Result<std::unique_ptr<ConfigDirectoryWatcher>> ConfigDirectoryWatcher::watch_directory(Loop& loop,
                                                                                        NodeConfig node,
                                                                                        Changed changed) {
  std::unique_ptr<ConfigDirectoryWatcher> watcher(
      new ConfigDirectoryWatcher(loop, std::move(node), std::move(changed)));
  ConfigDirectoryWatcher* const self = watcher.get();
  GPULET_TRY_ASSIGN(watcher->directory_watch_, FileWatcher::watch_path(loop, self->node_.directory, [self] {
                      self->schedule_reevaluation(Duration::zero());
                    }));
  GPULET_TRY(watcher->watch_entries());
  return watcher;
}

// directory_watch_ reports a missing directory once it appears.
Status ConfigDirectoryWatcher::watch_entries() {
  auto entries =
      watch_events(loop_, node_.directory, kEntryEvents,
                   [this](const std::string&, std::uint32_t) { schedule_reevaluation(kWatchDebounce); });
  if (!entries && entries.error().code() == Code::kIo) return fail(entries.error());
  entries_ = entries ? std::move(*entries) : Subscription();
  return {};
}

void ConfigDirectoryWatcher::set_label(std::optional<std::string> value) {
  if (label_known_ && value == label_) return;
  label_known_ = true;
  label_ = std::move(value);
  schedule_reevaluation(Duration::zero());
}

// A pending re-evaluation is not delayed.
void ConfigDirectoryWatcher::schedule_reevaluation(Duration delay) {
  if (label_known_ && !settling_) settling_ = loop_.after(delay, [this] { reevaluate(); });
}

void ConfigDirectoryWatcher::reevaluate() {
  settling_.reset();
  // Watch before reading, so that a later change causes another event.
  if (const auto armed = watch_entries(); !armed) {
    log::warning("the config directory is no longer watched", armed.error(),
                 {{"directory", node_.directory}});
  }
  ConfigChoice next = choose_config_in_directory(node_, label_);
  const bool differs = next != choice_;
  choice_ = std::move(next);
  watch_file(choice_.config_path(node_.directory));
  if (!differs && !content_changed_) return;
  content_changed_ = false;
  changed_(choice_.config_path(node_.directory), choice_.problem);
}

void ConfigDirectoryWatcher::watch_file(const std::string& path) {
  if (path == watched_path_) return;
  file_watch_.reset();
  watched_path_ = path;
  if (path.empty()) return;
  auto watch = FileWatcher::watch_path(loop_, path, [this] {
    content_changed_ = true;
    schedule_reevaluation(Duration::zero());
  });
  if (watch) {
    file_watch_ = std::move(*watch);
  } else {
    watched_path_.clear();
    log::warning("a config of the node is not watched", watch.error(), {{"file", path}});
  }
}

}  // namespace gpulet::config
