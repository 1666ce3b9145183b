#include "config/config_folder.h"

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
constexpr std::size_t kMostNamesTold = 10;

// A name that stays in its folder, and is none of a ConfigMap's own.
bool usable(const std::string& name) {
  return !name.empty() && name != "." && !text::starts_with(name, "..") &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

std::string told(const std::vector<std::string>& names) {
  if (names.empty()) return "there is none";
  if (names.size() == 1) return "there is " + names.front();
  const auto count = std::min(names.size(), kMostNamesTold);
  std::string told_names = "there are " + text::join(std::span(names).first(count), ", ");
  if (count < names.size()) told_names += " and " + std::to_string(names.size() - count) + " more";
  return told_names;
}

struct ConfigNames {
  std::vector<std::string> all;  // sorted
  bool has(const std::string& name) const { return std::ranges::binary_search(all, name); }
};

ConfigChoice file(std::string name) {
  return {.kind = ConfigChoice::Kind::kFile, .name = std::move(name), .problem = std::nullopt};
}

ConfigChoice fall_back(const std::vector<FallbackStrategy>& fallbacks, const ConfigNames& names) {
  for (const auto fallback : fallbacks) {
    switch (fallback) {
      case FallbackStrategy::kNamed:
        if (names.has(kNamedFallback)) return file(kNamedFallback);
        break;
      case FallbackStrategy::kSingle:
        if (names.all.size() == 1) return file(names.all.front());
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

std::string joined(const std::string& folder, const std::string& name) {
  return !folder.empty() && folder.back() == '/' ? folder + name : folder + "/" + name;
}

}  // namespace

std::string ConfigChoice::path(const std::string& folder) const {
  return kind == Kind::kFile ? joined(folder, name) : std::string();
}

Result<FallbackStrategy> fallback_strategy(const std::string& text) {
  if (text == "named") return FallbackStrategy::kNamed;
  if (text == "single") return FallbackStrategy::kSingle;
  if (text == "empty") return FallbackStrategy::kEmpty;
  return fail(Code::kInvalidArgument,
              "\"" + text + "\" is no fallback strategy; they are named, single and empty");
}

ConfigChoice choose(const NodeConfig& node, const std::optional<std::string>& label_value,
                    const std::vector<std::string>& names) {
  ConfigNames there;
  std::ranges::copy_if(names, std::back_inserter(there.all), usable);
  std::ranges::sort(there.all);
  const std::string label = label_value.value_or("");
  ConfigChoice choice;
  // An empty folder is a ConfigMap that is not mounted yet, and no reason to use the empty config.
  if (there.all.empty()) {
    choice.problem = "there is no config in " + node.folder;
    if (!label.empty()) *choice.problem += " for the label " + node.label + "=" + label;
    return choice;
  }
  std::vector<std::string> missing;
  if (!label.empty()) {
    if (there.has(label)) return file(label);
    missing.push_back("the label " + node.label + "=" + label + " names no config in " + node.folder);
  }
  if (!node.default_config.empty() && there.has(node.default_config)) {
    choice = file(node.default_config);
  } else {
    if (!node.default_config.empty()) {
      missing.push_back("the default config " + node.default_config +
                        (missing.empty() ? " is not in " + node.folder : " is not there either"));
    }
    choice = fall_back(node.fallbacks, there);
  }
  if (!missing.empty()) {
    choice.problem = text::join(missing, " and ") + "; " + told(there.all) + "; " + used(choice);
  } else if (choice.kind == ConfigChoice::Kind::kNothing) {
    choice.problem = "the node has no label " + node.label +
                     ", there is no default config, and no fallback strategy finds one in " + node.folder +
                     "; " + told(there.all);
  }
  return choice;
}

Result<std::vector<std::string>> config_names(const std::string& folder) {
  DIR* const directory = opendir(folder.c_str());
  if (!directory) return fail(errno_error("cannot be read", errno, folder));
  std::vector<std::string> names;
  int error = 0;
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(directory);
    if (!entry) {
      error = errno;
      break;
    }
    std::string name = entry->d_name;
    struct stat status{};
    if (usable(name) && fstatat(dirfd(directory), name.c_str(), &status, 0) == 0 &&
        !S_ISDIR(status.st_mode)) {
      names.push_back(std::move(name));
    }
  }
  closedir(directory);
  if (error != 0) return fail(errno_error("cannot be read", error, folder));
  std::ranges::sort(names);
  return names;
}

ConfigChoice choose_in_folder(const NodeConfig& node, const std::optional<std::string>& label_value) {
  const auto names = config_names(node.folder);
  if (names) return choose(node, label_value, *names);
  return {.kind = ConfigChoice::Kind::kNothing, .name = {}, .problem = names.error().text()};
}

ConfigFolder::ConfigFolder(Loop& loop, NodeConfig node, Changed changed,
                           std::unique_ptr<InotifyWatch> inotify)
    : loop_(loop), node_(std::move(node)), changed_(std::move(changed)), inotify_(std::move(inotify)) {}

Result<std::unique_ptr<ConfigFolder>> ConfigFolder::start(Loop& loop, NodeConfig node, Changed changed) {
  GPULET_TRY_ASSIGN(auto inotify, InotifyWatch::open(loop));
  std::unique_ptr<ConfigFolder> folder(
      new ConfigFolder(loop, std::move(node), std::move(changed), std::move(inotify)));
  ConfigFolder* const self = folder.get();
  GPULET_TRY_ASSIGN(folder->folder_watch_, FileWatch::start(loop, self->node_.folder,
                                                            [self] { self->look_again(Duration::zero()); }));
  GPULET_TRY(folder->arm());
  return folder;
}

// A folder that is not there is folder_watch_'s to see.
Status ConfigFolder::arm() {
  auto entries = inotify_->add(node_.folder, kEntryEvents,
                               [this](const std::string&, std::uint32_t) { look_again(kWatchDebounce); });
  if (!entries && entries.error().code() == Code::kIo) return fail(entries.error());
  entries_ = entries ? std::move(*entries) : Subscription();
  return {};
}

void ConfigFolder::set_label(std::optional<std::string> value) {
  if (label_known_ && value == label_) return;
  label_known_ = true;
  label_ = std::move(value);
  look_again(Duration::zero());
}

// What is due already comes first.
void ConfigFolder::look_again(Duration delay) {
  if (label_known_ && !settling_) settling_ = loop_.after(delay, [this] { look(); });
}

void ConfigFolder::look() {
  settling_.reset();
  // Watched anew before it is read: a change from here on is an event of its own.
  if (const auto armed = arm(); !armed) {
    log::warning("the folder of configs is watched no longer", armed.error(), {{"folder", node_.folder}});
  }
  ConfigChoice next = choose_in_folder(node_, label_);
  const bool differs = next != choice_;
  choice_ = std::move(next);
  watch_file(choice_.path(node_.folder));
  if (!differs && !content_changed_) return;
  content_changed_ = false;
  changed_(choice_.path(node_.folder), choice_.problem);
}

void ConfigFolder::watch_file(const std::string& path) {
  if (path == watched_path_) return;
  file_watch_.reset();
  watched_path_ = path;
  if (path.empty()) return;
  auto watch = FileWatch::start(loop_, path, [this] {
    content_changed_ = true;
    look_again(Duration::zero());
  });
  if (watch) {
    file_watch_ = std::move(*watch);
  } else {
    watched_path_.clear();
    log::warning("a config of the node is not watched", watch.error(), {{"file", path}});
  }
}

}  // namespace gpulet::config
