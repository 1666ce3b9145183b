#include "agent/node_files.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "agent/cordon_care.h"
#include "agent/health_memory.h"
#include "base/unix_socket.h"
#include "cdi/spec_files.h"

namespace gpulet::agent {
namespace {

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), ::closedir);
  if (!open) return names;
  while (const dirent* entry = ::readdir(open.get())) names.emplace_back(entry->d_name);
  std::ranges::sort(names);
  return names;
}

void remove(const std::string& path, RemovedFiles& removed) {
  if (::unlink(path.c_str()) == 0) {
    removed.paths.push_back(path);
  } else if (errno != ENOENT && errno != ENOTDIR) {
    removed.errors.push_back(errno_error("cannot remove", errno, path));
  }
}

void remove_specs(const std::string& folder, RemovedFiles& removed) {
  // Nobody has ever written there: the folder is not made for that.
  if (std::ranges::count(names_in(folder), cdi::kSpecList) == 0) return;
  const auto done = cdi::SpecFolder(folder).write({});
  if (!done) {
    removed.errors.push_back(done.error());
    return;
  }
  for (const auto& name : done->removed) removed.paths.push_back(folder + "/" + name);
  removed.errors.insert(removed.errors.end(), done->errors.begin(), done->errors.end());
}

// An agent takes its sockets away when it ends, but for one that was killed. Another device plugin's has
// somebody who listens.
void remove_dead_sockets(const std::string& folder, RemovedFiles& removed) {
  for (const auto& name : names_in(folder)) {
    if (!name.starts_with("nvidia-") || !name.ends_with(".sock")) continue;
    const auto connected = connect_unix(folder + "/" + name);
    if (!connected && connected.error().code() == Code::kUnavailable) remove(folder + "/" + name, removed);
  }
}

}  // namespace

RemovedFiles remove_node_files(const NodeFolders& folders) {
  RemovedFiles removed;
  if (!folders.spec_dir.empty()) remove_specs(folders.spec_dir, removed);
  if (!folders.hook_dir.empty()) remove(folders.hook_dir + "/gpulet-hook", removed);
  if (!folders.device_plugin_dir.empty()) remove_dead_sockets(folders.device_plugin_dir, removed);
  if (!folders.run_dir.empty()) {
    for (const char* name : {"health.json", "agent.sock"}) remove(folders.run_dir + "/" + name, removed);
  }
  if (!folders.state_dir.empty()) {
    remove(folders.state_dir + "/" + kHealthStateFile, removed);
    const auto cordons = cordons_file(folders.state_dir);
    for (const char* suffix : {"", ".lock"}) remove(cordons + suffix, removed);
    // Last: whoever holds it keeps an agent from starting until all is gone.
    remove(presence_file(folders.state_dir), removed);
  }
  return removed;
}

}  // namespace gpulet::agent
