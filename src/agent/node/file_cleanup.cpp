#include "agent/node/file_cleanup.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "agent/health/health_controller.h"
#include "agent/health/operator_interface.h"
#include "base/file.h"
#include "cdi/spec_files.h"

namespace gpulet::agent {
namespace {

std::vector<std::string> list_directory(const std::string& directory) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(directory.c_str()), ::closedir);
  if (!open) return names;
  while (const dirent* entry = ::readdir(open.get())) names.emplace_back(entry->d_name);
  std::ranges::sort(names);
  return names;
}

void remove_file(const std::string& path, RemovedFiles& removed) {
  if (::unlink(path.c_str()) == 0) {
    removed.paths.push_back(path);
  } else if (errno != ENOENT && errno != ENOTDIR) {
    removed.errors.push_back(errno_error("cannot remove", errno, path));
  }
}

void remove_cdi_specs(const std::string& directory, RemovedFiles& removed) {
  // Nothing was ever written there: do not create the directory.
  if (std::ranges::count(list_directory(directory), cdi::kSpecList) == 0) return;
  const auto done = cdi::SpecDirectory(directory).write_specs({});
  if (!done) {
    removed.errors.push_back(done.error());
    return;
  }
  for (const auto& name : done->removed) removed.paths.push_back(directory + "/" + name);
  removed.errors.insert(removed.errors.end(), done->errors.begin(), done->errors.end());
}

// An agent that was killed leaves its sockets. Another device plugin's socket has a listener.
void remove_dead_sockets(const std::string& directory, RemovedFiles& removed) {
  for (const auto& name : list_directory(directory)) {
    if (!name.starts_with("nvidia-") || !name.ends_with(".sock")) continue;
    const auto connected = connect_unix_socket(directory + "/" + name);
    if (!connected && connected.error().code() == Code::kUnavailable)
      remove_file(directory + "/" + name, removed);
  }
}

}  // namespace

RemovedFiles remove_node_files(const NodeDirectories& directories) {
  RemovedFiles removed;
  if (!directories.spec_dir.empty()) remove_cdi_specs(directories.spec_dir, removed);
  if (!directories.hook_dir.empty()) remove_file(directories.hook_dir + "/gpulet-hook", removed);
  if (!directories.device_plugin_dir.empty()) remove_dead_sockets(directories.device_plugin_dir, removed);
  if (!directories.run_dir.empty()) {
    for (const char* name : {"health.json", "agent.sock"})
      remove_file(directories.run_dir + "/" + name, removed);
  }
  if (!directories.state_dir.empty()) {
    remove_file(directories.state_dir + "/" + kHealthStateFile, removed);
    const auto cordons = cordons_path(directories.state_dir);
    for (const char* suffix : {"", ".lock"}) remove_file(cordons + suffix, removed);
    // Last: its lock keeps an agent from starting until everything is removed.
    remove_file(presence_path(directories.state_dir), removed);
  }
  return removed;
}

}  // namespace gpulet::agent
