// The kubelet's sockets, and MPS control daemons.
#include <sys/socket.h>

#include <algorithm>

#include "base/file.h"
#include "base/text.h"
#include "base/unix_socket.h"
#include "doctor/probes.h"
#include "kubelet/pod_resources.h"
#include "mps/control.h"

namespace gpulet::doctor {
namespace {

// Where others put it than /var/lib/kubelet: MicroK8s, k0s.
constexpr const char* kOtherFolders[] = {"/var/lib/kubelet", "/var/snap/microk8s/common/var/lib/kubelet",
                                         "/var/lib/k0s/kubelet"};
constexpr Duration kMpsLimit = std::chrono::seconds(3);

// NVIDIA's plugin names its sockets nvidia-<resource>.sock, GKE's nvidiaGPU-<time>.sock.
bool is_plugin(const std::string& name) { return name.starts_with("nvidia") && name.ends_with(".sock"); }

PluginSocket look_at_plugin(const std::string& folder, const std::string& name) {
  PluginSocket plugin{.name = name, .trouble = {}, .pid = 0};
  const auto socket = connect_unix(folder + "/" + name);
  if (!socket) {
    plugin.trouble = socket.error();
    return plugin;
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket->get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) plugin.pid = peer.pid;
  return plugin;
}

// A folder that is not there holds none.
Status look_at_plugins(const std::string& path, std::vector<PluginSocket>& plugins) {
  const auto folder = RootDirectory::open(path);
  if (!folder && folder.error().code() == Code::kNotFound) return {};
  if (!folder) return fail(folder.error());
  GPULET_TRY_ASSIGN(const auto names, folder->list("/"));
  for (const auto& name : names) {
    if (is_plugin(name)) plugins.push_back(look_at_plugin(path, name));
  }
  return {};
}

Status look_at_socket(const std::string& path) {
  GPULET_TRY(connect_unix(path));
  return {};
}

using Counts = std::map<std::string, std::size_t>;

void count(const kubelet::DevicesByResource& devices, Counts& counts) {
  for (const auto& [resource, ids] : devices) {
    if (resource.str().starts_with(kOurs)) counts[resource.str()] += ids.size();
  }
}

}  // namespace

Kubelet ask_kubelet(Prober& prober, const Places& places, const Trees& trees) {
  Kubelet kubelet;
  const std::string dir =
      places.kubelet_dir.empty() ? below(trees.host, "/var/lib/kubelet") : places.kubelet_dir;
  kubelet.folder = dir;
  const std::string plugins = dir + "/device-plugins";
  auto looked =
      prober.on_thread<Kubelet>("the kubelet's folder", [=, host = trees.host]() -> Result<Kubelet> {
        Kubelet seen;
        seen.folder = dir;
        seen.socket = look_at_socket(plugins + "/kubelet.sock");
        seen.plugins_seen = look_at_plugins(plugins, seen.plugins);
        for (const char* other : kOtherFolders) {
          const auto path = below(host, other);
          if (path != dir && look_at_socket(path + "/device-plugins/kubelet.sock"))
            seen.other_folders.push_back(path);
        }
        return seen;
      });
  if (looked) kubelet = std::move(*looked);
  if (!looked) kubelet.socket = kubelet.plugins_seen = fail(looked.error());

  const auto resources = kubelet::make_pod_resources(prober.loop(), kubelet::make_rpc(),
                                                     dir + "/pod-resources/kubelet.sock", kProbeLimit);
  kubelet.allocatable = prober.on_loop<Counts>("the kubelet", kProbeLimit, [&](auto done) {
    resources->allocatable([done](const Result<kubelet::DevicesByResource>& devices) {
      if (!devices) return done(fail(devices.error()));
      Counts counts;
      count(*devices, counts);
      done(std::move(counts));
    });
  });
  kubelet.held = prober.on_loop<Counts>("the kubelet", kProbeLimit, [&](auto done) {
    resources->list([done](const Result<std::vector<kubelet::ContainerDevices>>& containers) {
      if (!containers) return done(fail(containers.error()));
      Counts counts;
      for (const auto& container : *containers) count(container.devices, counts);
      done(std::move(counts));
    });
  });
  return kubelet;
}

Result<std::vector<MpsDaemon>> ask_mps(Prober& prober, const Trees& trees, const std::string& root) {
  using Pipes = std::vector<std::pair<std::string, std::string>>;
  GPULET_TRY_ASSIGN(
      const auto pipes,
      prober.on_thread<Pipes>("the MPS root", [path = below(trees.host, root)] { return mps_pipes(path); }));
  std::vector<MpsDaemon> daemons;
  if (pipes.empty()) return daemons;
  const auto program = mps::find_driver_program(trees.driver, mps::kControlProgram);
  for (const auto& [name, pipe] : pipes) {
    MpsDaemon daemon{.name = name, .trouble = {}};
    const auto connected = connect_unix(pipe + "/control");
    if (!connected) daemon.trouble = connected.error();
    if (connected && program) {
      auto environment = mps::driver_environment(trees.driver);
      environment.push_back("CUDA_MPS_PIPE_DIRECTORY=" + pipe);
      std::unique_ptr<mps::ProgramCall> call;
      const auto answer = prober.on_loop<std::string>("the daemon", kMpsLimit + kProbeLimit, [&](auto done) {
        auto started = mps::ProgramCall::start(prober.loop(),
                                               {.program = *program,
                                                .environment = std::move(environment),
                                                .input = "get_default_active_thread_percentage\n"},
                                               kMpsLimit, done);
        if (!started) return done(fail(started.error()));
        call = std::move(*started);
      });
      if (!answer) daemon.trouble = answer.error();
    }
    daemons.push_back(std::move(daemon));
  }
  return daemons;
}

}  // namespace gpulet::doctor
