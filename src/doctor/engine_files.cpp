// Container engines, CDI specs, MPS folders, and the raw texts of an archive.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/text.h"
#include "cdi/spec_dirs.h"
#include "doctor/probes.h"

namespace gpulet::doctor {
namespace {

constexpr std::string_view kRuntime = "nvidia-container-runtime";
constexpr int kMpsDepth = 4;  // <root>/nvidia.com/gpu/<UUID>

std::string text_of(const runtimes::Host& host, const std::string& path) {
  const auto text = host.read(path);
  return text && *text ? **text : std::string();
}

bool is_of_nvidia(const std::string& file) {
  const auto text = read_file(file);
  return text && text->find("nvidia.com") != std::string::npos;
}

// What a spec's edits name of the host; device nodes are another check's.
struct Named {
  std::set<std::string> paths, versions;
  void add(const cdi::ContainerEdits& edits) {
    for (const auto& hook : edits.hooks) paths.insert(hook.path);
    for (const auto& mount : edits.mounts) {
      paths.insert(mount.host_path);
      const std::string name(text::base_name(mount.host_path));
      for (const std::string_view library : {"libcuda.so.", "libnvidia-ml.so."}) {
        if (name.starts_with(library) && name.find('.', library.size()) != std::string::npos)
          versions.insert(name.substr(library.size()));
      }
    }
  }
};

// What the kernel's log has of the driver and of PCI errors, as far back as it goes. A record each read;
// where there is none left it does not wait.
std::string kernel_lines(const Trees& trees) {
  constexpr std::string_view kWords[] = {"NVRM", "nvidia", "Nouveau", "nouveau", "AER:", "pcieport"};
  constexpr std::size_t kMost = 1u << 20;
  const auto root = RootDirectory::open(trees.dev);
  const auto log =
      root ? root->open_file("/kmsg", O_RDONLY | O_NONBLOCK) : Result<FileDescriptor>(fail(root.error()));
  std::string lines;
  std::array<char, 8192> record;
  while (log && lines.size() < kMost) {
    const ssize_t got = ::read(log->get(), record.data(), record.size());
    if (got < 0 && errno == EPIPE) continue;  // records that were overwritten meanwhile
    if (got <= 0) break;
    for (const auto& line :
         text::split(std::string_view(record.data(), static_cast<std::size_t>(got)), '\n')) {
      const auto names = [&](std::string_view word) { return line.find(word) != std::string::npos; };
      if (std::ranges::any_of(kWords, names)) lines += line + "\n";
    }
  }
  return lines;
}

void add_file(std::vector<ArchiveFile>& files, const std::string& root, const std::string& path) {
  const auto directory = RootDirectory::open(root);
  if (!directory) return;
  if (auto text = directory->read(path)) files.push_back({"node" + path, std::move(*text)});
}

}  // namespace

Result<Engines> look_at_engines(const Trees& trees, bool inside,
                                const std::vector<runtimes::CommandLine>& kubelets) {
  GPULET_TRY_ASSIGN(const auto host, runtimes::Host::open({.root = trees.host, .inside = inside}));
  Engines engines;
  for (auto& report : runtimes::check(host)) {
    Engine engine{.report = std::move(report), .nvidia_runtime = false};
    engine.nvidia_runtime = std::ranges::any_of(engine.report.files, [&](const auto& file) {
      return text_of(host, file).find(kRuntime) != std::string::npos;
    });
    engines.all.push_back(std::move(engine));
  }
  engines.endpoint = runtimes::kubelet_endpoint(host, kubelets);
  return engines;
}

Result<CdiSpecs> look_at_cdi(const Trees& trees, const std::string& agent_folder, bool host_files_seen) {
  GPULET_TRY_ASSIGN(const auto host, RootDirectory::open(trees.host));
  CdiSpecs specs;
  specs.folders = cdi::kSpecDirs;
  if (std::ranges::find(specs.folders, agent_folder) == specs.folders.end())
    specs.folders.push_back(agent_folder);
  std::vector<std::string> folders;  // as we see them
  for (const auto& folder : specs.folders) {
    if (const auto path = host.resolve(folder)) folders.push_back(below(trees.host, *path));
  }
  const auto read = cdi::read_spec_dirs(folders);
  for (const auto& problem : read.problems) {
    const auto line = problem.text();
    const auto about = [&](const std::string& file) {
      return line.starts_with(file + ":") && is_of_nvidia(file);
    };
    if (std::ranges::any_of(read.files, about)) specs.problems.push_back(line);
  }
  for (const auto& device : read.devices) {
    if (device.substr(0, device.find('/')).ends_with("nvidia.com")) specs.devices.push_back(device);
  }
  Named named;
  for (const auto& file : read.files) {
    const auto spec = cdi::read_spec_file(file).spec;
    if (!spec || spec->kind.find(kOurs) == std::string::npos) continue;
    specs.files.push_back(file);
    named.add(spec->edits);
    for (const auto& device : spec->devices) named.add(device.edits);
  }
  specs.versions = std::move(named.versions);
  for (const auto& path : named.paths) {
    if (host_files_seen && !host.exists(path)) specs.missing.push_back(path);
  }
  return specs;
}

Result<std::vector<std::pair<std::string, std::string>>> mps_pipes(const std::string& root) {
  std::vector<std::pair<std::string, std::string>> pipes;
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(root, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    if (entry.depth() >= kMpsDepth) entry.disable_recursion_pending();
    if (entry->path().filename() != ".started") continue;
    const auto folder = entry->path().parent_path();
    pipes.emplace_back(folder.lexically_relative(root).string(), (folder / "pipe").string());
  }
  if (error && error.value() != ENOENT)
    return fail(errno_error("cannot be looked through", error.value(), root));
  std::ranges::sort(pipes);
  return pipes;
}

std::vector<ArchiveFile> raw_files(const Trees& trees, const std::string& device_plugins,
                                   const std::set<std::string>& settings) {
  std::vector<ArchiveFile> files;
  const auto proc_root = trees.proc.substr(0, trees.proc.size() - 5);  // the folder that has proc/
  for (const char* path : {"/proc/driver/nvidia/version", "/proc/driver/nvidia/params", "/proc/devices",
                           "/proc/cmdline", "/proc/version", "/proc/modules"})
    add_file(files, proc_root.empty() ? "/" : proc_root, path);
  const auto host = RootDirectory::open(trees.host);
  const auto add_folder = [&](const std::string& folder) {
    for (const auto& name : host->list(folder).value_or(std::vector<std::string>()))
      add_file(files, trees.host, folder + "/" + name);
  };
  if (host) {
    for (const auto& folder : cdi::kSpecDirs) add_folder(folder);
    for (const char* path : {"/etc/os-release", "/run/gpulet/health.json", "/var/lib/kubelet/config.yaml",
                             "/var/lib/kubelet/kubeadm-flags.env"})
      add_file(files, trees.host, path);
    for (const auto& path : settings) add_file(files, trees.host, path);
    for (const std::string folder : {"/etc/containerd/conf.d", "/etc/crio/crio.conf.d"}) {
      for (const auto& name : host->list(folder).value_or(std::vector<std::string>())) {
        if (!settings.contains(folder + "/" + name)) add_file(files, trees.host, folder + "/" + name);
      }
    }
  }
  if (auto lines = kernel_lines(trees); !lines.empty()) files.push_back({"kernel.txt", std::move(lines)});
  if (const auto folder = RootDirectory::open(device_plugins)) {
    const auto names = folder->list("/").value_or(std::vector<std::string>());
    files.push_back({"kubelet/device-plugins.txt", text::join(names, "\n") + "\n"});
  }
  return files;
}

}  // namespace gpulet::doctor
