#include "base/json.h"
#include "doctor/probe.h"

#include <sys/socket.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "agent/driver/driver_rights.h"
#include "agent/driver/nvml_driver.h"
#include "agent/health/evidence_reader.h"
#include "agent/resources/cdi_controller.h"
#include "base/driver_root.h"
#include "base/file.h"
#include "base/text.h"
#include "config/load.h"
#include "device_plugin/pod_resources.h"
#include "http/client.h"
#include "http/socket.h"
#include "k8s/objects.h"
#include "mig/hardware.h"
#include "mps/control_program.h"
#include "mps/daemon.h"
#include "mps/namespaces.h"
#include "nvml/health.h"
#include "nvml/return_codes.h"
#include "nvml/usage.h"

namespace gpulet::doctor {
namespace {

GpuFacts basic_gpu_facts(const inventory::Gpu& gpu) {
  GpuFacts facts;
  facts.index = gpu.index;
  facts.uuid = gpu.uuid.str();
  facts.unreadable = gpu.unreadable;
  facts.mig.enabled = gpu.mig_enabled;
  facts.mig.pending = gpu.mig_pending;
  return facts;
}

void read_health(const nvml::Health& gpu, GpuFacts& facts) {
  if (const auto rows = gpu.row_remap()) {
    facts.rows_pending = rows->pending;
    facts.rows_failed = rows->failed;
  }
  if (const auto pages = gpu.retired_pages()) facts.pages_pending = pages->pending;
  if (const auto ecc = gpu.uncorrected_ecc())
    facts.sram_threshold = ecc->sram_threshold_exceeded.value_or(false);
  if (const auto valid = gpu.inforom_valid()) facts.inforom_valid = *valid;
  if (const auto pcie = gpu.pcie(); pcie && pcie->width && pcie->full_width) {
    facts.width = *pcie->width;
    facts.full_width = *pcie->full_width;
  }
  if (const auto fabric = gpu.fabric_health()) facts.fabric = agent::fabric_state_of(*fabric);
}

void read_mig_facts(const nvml::Session& session, GpuFacts& facts) {
  if (!facts.mig.enabled) return;
  const auto state = mig::read_mig_state(session, facts.index);
  if (!state) return;
  facts.mig.instances = static_cast<unsigned>(state->instances.size());
  for (const auto& instance : state->instances) facts.mig.empty_instances += instance.compute.empty() ? 1 : 0;
}

Result<GpuFacts> read_gpu_facts(const nvml::Session& session, GpuFacts facts) {
  GPULET_TRY_ASSIGN(const auto device, session.device(facts.index));
  facts.recovery_action = session.recovery_action(device).value_or(0);
  read_health(nvml::Health(session, device), facts);
  const nvml::Usage usage(session, device);
  facts.clock_events = usage.clock_events().value_or(0);
  facts.temperature = usage.temperature().value_or(0);
  read_mig_facts(session, facts);
  // Failed readings above are left out, but a lost GPU must be reported.
  const auto memory = session.memory_total(device);
  if (!memory && nvml::is_device_fault(memory.error())) facts.unreadable = memory.error();
  return facts;
}

// One round: open, read, then each readable GPU.
class DriverProbe {
 public:
  using Done = std::function<void(Result<DriverFacts>)>;

  DriverProbe(Loop& loop, const std::string& driver_root, const std::vector<std::string>& sys_roots)
      : driver_(loop, {.driver_root = driver_root,
                       .sys_roots = sys_roots,
                       .call_timeout = kProbeTimeout,
                       .events = false}) {}

  void start_probe(Done done) {
    done_ = std::move(done);
    driver_.open_driver([this](const Status& opened) {
      if (!opened) return done_(fail(opened.error()));
      driver_.read_snapshot([this](const Result<inventory::Snapshot>& snapshot) {
        if (!snapshot) return done_(fail(snapshot.error()));
        read_gpus(*snapshot);
      });
    });
  }

 private:
  void read_gpus(const inventory::Snapshot& snapshot) {
    result_.version = snapshot.driver.version;
    for (const auto& gpu : snapshot.gpus) result_.gpus.push_back(basic_gpu_facts(gpu));
    pending_ = 1;
    for (std::size_t i = 0; i < result_.gpus.size(); ++i) {
      const auto& gpu = result_.gpus[i];
      if (gpu.unreadable) continue;
      ++pending_;
      driver_.run_on_gpu<GpuFacts>(
          snapshot.gpus[i].uuid, "asking", kProbeTimeout,
          [gpu](const agent::NvmlDriver::SessionPtr& session, unsigned) {
            return read_gpu_facts(*session, gpu);
          },
          [this, i](Result<GpuFacts> facts) {
            if (facts) result_.gpus[i] = std::move(*facts);
            if (!facts) result_.gpus[i].unreadable = facts.error();
            finish_gpu();
          });
    }
    finish_gpu();
  }
  void finish_gpu() {
    if (--pending_ == 0) done_(std::move(result_));
  }

  agent::NvmlDriver driver_;
  Done done_;
  DriverFacts result_;
  std::size_t pending_ = 0;
};

}  // namespace

Result<DriverFacts> probe_driver(Prober& prober, const std::string& driver_root,
                                 const std::vector<std::string>& sys_roots) {
  DriverProbe round(prober.loop(), driver_root, sys_roots);
  return prober.run_on_loop<DriverFacts>("the driver", 4 * kProbeTimeout,
                                         [&](auto done) { round.start_probe(std::move(done)); });
}

// The agent of this node, through its socket or an address.

namespace {

using nlohmann::json;

constexpr std::size_t kMaxDocumentBytes = 16u << 20;

std::string index_text(const json& object) {
  const auto& index = json_member(object, "index");
  return index.is_number_unsigned() ? std::to_string(index.get<std::uint64_t>()) : std::string("?");
}

bool is_offered_state(const std::string& state) {
  return state.empty() || state == "healthy" || state == "degraded" || state == "unmonitored";
}

AgentDevice parse_agent_device(const json& object, std::string name) {
  AgentDevice device{.name = std::move(name),
                     .uuid = json_text(json_member(object, "uuid")),
                     .state = json_text(json_member(object, "state")),
                     .reason = json_text(json_member(object, "reason")),
                     .offered = true,
                     .resource = json_text(json_member(object, "resource")),
                     .excluded = json_text(json_member(object, "excluded"))};
  const auto& offered = json_member(object, "offered");
  device.offered = offered.is_boolean() ? offered.get<bool>() : is_offered_state(device.state);
  device.waits = is_offered_state(device.state) &&
                 json_text(json_member(json_member(object, "preflight"), "result")) == "waiting";
  return device;
}

// "process 812 (python3) holds 20000 MiB"
std::string process_text(const json& object) {
  const auto& pid = json_member(object, "pid");
  const auto& memory = json_member(object, "memory");
  const std::string name = json_text(json_member(object, "name"));
  std::string text = "process " + (pid.is_number_unsigned() ? std::to_string(pid.get<unsigned>()) : "?");
  if (!name.empty()) text += " (" + name + ")";
  if (memory.is_number_unsigned())
    text += " holds " + std::to_string(memory.get<std::uint64_t>() >> 20) + " MiB";
  return text;
}

std::optional<AgentGpu> parse_agent_gpu(const json& object) {
  const auto& index = json_member(object, "index");
  if (!index.is_number_unsigned()) return std::nullopt;
  AgentGpu gpu;
  gpu.index = index.get<unsigned>();
  const auto& mig = json_member(object, "mig");
  gpu.mig.enabled = mig.is_object();
  gpu.mig.instances = static_cast<unsigned>(json_member(mig, "devices").size());
  if (const auto& pending = json_member(object, "mig_pending"); pending.is_boolean())
    gpu.mig.pending = pending.get<bool>();
  if (const auto& links = json_member(object, "nvswitch_links"); links.is_number_unsigned())
    gpu.nvswitch_links = links.get<unsigned>();
  const auto& fabric = json_member(object, "fabric");
  gpu.in_fabric = fabric.is_boolean() && fabric.get<bool>();
  for (const auto& fault : json_member(object, "faults"))
    gpu.faults.push_back({json_text(json_member(fault, "class")), json_text(json_member(fault, "text")),
                          json_text(json_member(fault, "effect"))});
  if (const auto& unread = json_member(object, "unread"); unread.is_array()) {
    gpu.unread.emplace();
    for (const auto& one : unread)
      gpu.unread->emplace(json_text(json_member(one, "source")), json_text(json_member(one, "reason")));
  }
  if (!json_member(object, "excluded").is_null()) return gpu;  // no Pod is to use it
  for (const auto& one : json_member(object, "outside_pods")) gpu.outside_pods.push_back(process_text(one));
  return gpu;
}

class AgentClient {
 public:
  AgentClient(Loop& loop, const ProbeTargets& targets) : loop_(loop), targets_(targets) {
    socket_ =
        targets.socket.empty() ? path_below(targets.host_root, "/run/gpulet/agent.sock") : targets.socket;
  }

  void fetch_path(const std::string& path, std::function<void(Result<std::string>)> done) {
    path_ = path;
    done_ = std::move(done);
    if (endpoint_) return start_request();
    if (targets_.agent_host.empty()) return set_endpoint(http::unix_address(socket_));
    resolver_.emplace(loop_, targets_.agent_host, targets_.agent_port);
    resolver_->resolve([this](const Result<http::SocketAddresses>& found) {
      if (!found) return set_endpoint(fail(found.error()));
      if (found->empty())
        return set_endpoint(fail(Code::kUnavailable, "has no address", targets_.agent_host));
      set_endpoint(found->front());
    });
  }

 private:
  void set_endpoint(const Result<http::SocketAddress>& where) {
    if (!where) return done_(fail(where.error()));
    endpoint_ = *where;
    start_request();
  }
  void start_request() {
    text_.clear();
    auto fetch = http::HttpGet::start_get(loop_, *endpoint_, "localhost", path_,
                                          {.on_piece = [this](std::string_view piece) -> Status {
                                             if (text_.size() + piece.size() > kMaxDocumentBytes)
                                               return fail(Code::kIo, "the response is too large", path_);
                                             text_ += piece;
                                             return {};
                                           },
                                           .on_end =
                                               [this](const Status& status) {
                                                 Result<std::string> text = std::move(text_);
                                                 if (!status) text = fail(status.error());
                                                 request_.reset();
                                                 done_(std::move(text));
                                               }});
    if (!fetch) return done_(fail(describe_error(fetch.error())));
    request_ = std::move(*fetch);
  }
  Error describe_error(const Error& error) const {
    if (!targets_.agent_host.empty()) return error;
    if (error.code() == Code::kNotFound)
      return {error.code(), "no agent is running: the socket does not exist", socket_};
    return {error.code(), error.message(), socket_};
  }

  Loop& loop_;
  const ProbeTargets& targets_;
  std::string socket_, path_, text_;
  std::optional<http::SocketAddress> endpoint_;
  std::optional<http::Resolver> resolver_;
  std::unique_ptr<http::HttpGet> request_;
  std::function<void(Result<std::string>)> done_;
};

}  // namespace

Result<AgentFacts> parse_agent_page(const std::string& document, std::string& config) {
  const auto node = parse_json(document);
  if (!node.is_object() || !json_member(node, "gpus").is_array())
    return fail(Code::kInvalidArgument, "the response is not from a gpulet agent");
  AgentFacts agent;
  agent.version = json_text(json_member(node, "version"));
  agent.driver_version = json_text(json_member(json_member(node, "driver"), "version"));
  config = json_text(json_member(node, "config"));
  for (const auto& problem : json_member(node, "problems")) agent.problems.push_back(json_text(problem));
  for (const auto& gpu : json_member(node, "gpus")) {
    agent.devices.push_back(parse_agent_device(gpu, "GPU " + index_text(gpu)));
    if (auto known = parse_agent_gpu(gpu)) agent.gpus.push_back(std::move(*known));
    const auto& devices = json_member(json_member(gpu, "mig"), "devices");
    const std::string excluded = agent.devices.back().excluded;
    for (const auto& device : devices) {
      agent.devices.push_back(
          parse_agent_device(device, "MIG " + index_text(gpu) + ":" + index_text(device)));
      agent.devices.back().excluded = excluded;
      if (!excluded.empty()) agent.devices.back().offered = false;
    }
  }
  agent.claims = agent::parse_claim_status(node);
  agent.memory_limit = agent::parse_limit_status(node);
  agent.power = agent::parse_power_status(node);
  for (const auto& container : json_member(node, "cut_off")) agent.cut_off.push_back(json_text(container));
  for (const auto& event : json_member(node, "events")) {
    const auto message = json_text(json_member(event, "message"));
    const bool refused = message.find("answered 403") != std::string::npos;
    if (refused && std::ranges::find(agent.refusals, message) == agent.refusals.end())
      agent.refusals.push_back(message);
    auto& rights = agent.missing_driver_rights;
    const bool lacks_right = json_text(json_member(event, "reason")) == agent::kMissingRightReason;
    if (lacks_right && std::ranges::find(rights, message) == rights.end()) rights.push_back(message);
  }
  return agent;
}

Result<AgentFacts> probe_agent(Prober& prober, const ProbeTargets& targets, std::string& config,
                               std::vector<ArchiveFile>& files) {
  AgentClient asking(prober.loop(), targets);
  const auto get = [&](const std::string& path) {
    return prober.run_on_loop<std::string>("the agent", kProbeTimeout,
                                           [&](auto done) { asking.fetch_path(path, std::move(done)); });
  };
  GPULET_TRY_ASSIGN(const auto document, get("/api/node"));
  files.push_back({"agent/node.json", document});
  GPULET_TRY_ASSIGN(auto agent, parse_agent_page(document, config));
  agent.read_at = prober.loop().wall_now();
  files.push_back({"agent/config.yaml", config});
  for (const std::string path : {"/api/now", "/metrics"}) {
    if (auto text = get(path))
      files.push_back({"agent/" + std::string(text::base_name(path)) + ".txt", std::move(*text)});
  }
  return agent;
}

Result<AgentSettings> agent_settings(const Result<AgentFacts>& agent, const std::string& config,
                                     const ProbeTargets& targets) {
  config::Sources sources;
  AgentSettings settings;
  if (agent) {
    settings.source = "the agent's settings";
    sources.file_path = settings.source;
    sources.file_content = config;
  } else if (!targets.config_file.empty()) {
    settings.source = targets.config_file;
    sources.flags["config-file"] = {targets.config_file};
    GPULET_TRY(config::read_config_file(sources));
  } else {
    return fail(Code::kNotFound, "no agent is running to read settings from; use --config-file");
  }
  sources.drop_in = true;  // keys unknown to this version are ignored
  GPULET_TRY_ASSIGN(const auto loaded, config::load(sources));
  settings.cdi = agent::uses_cdi(loaded.config);
  settings.volume_mounts = std::ranges::count(loaded.config.flags.device_list_strategy,
                                              config::DeviceListStrategy::kVolumeMounts) != 0;
  settings.cdi_directory = loaded.config.gpulet.cdi.spec_dir;
  if (!loaded.config.flags.mps_root.empty()) settings.mps_root = loaded.config.flags.mps_root;
  return settings;
}

// The kubelet's sockets, and MPS control daemons.

namespace {

// Kubelet directories of MicroK8s and k0s.
constexpr const char* kOtherKubeletDirs[] = {"/var/lib/kubelet", "/var/snap/microk8s/common/var/lib/kubelet",
                                             "/var/lib/k0s/kubelet"};
constexpr Duration kMpsTimeout = std::chrono::seconds(3);

// NVIDIA's plugin names its sockets nvidia-<resource>.sock, GKE's nvidiaGPU-<time>.sock.
bool is_plugin_socket(const std::string& name) {
  return name.starts_with("nvidia") && name.ends_with(".sock");
}

PluginSocket probe_plugin(const std::string& directory, const std::string& name) {
  PluginSocket plugin{.name = name, .error = {}, .pid = 0};
  const auto socket = connect_unix_socket(directory + "/" + name);
  if (!socket) {
    plugin.error = socket.error();
    return plugin;
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket->get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) plugin.pid = peer.pid;
  return plugin;
}

// A missing directory contains no sockets.
Status probe_plugins(const std::string& path, std::vector<PluginSocket>& plugins) {
  const auto directory = RootDirectory::open_root(path);
  if (!directory && directory.error().code() == Code::kNotFound) return {};
  if (!directory) return fail(directory.error());
  GPULET_TRY_ASSIGN(const auto names, directory->list_directory("/"));
  for (const auto& name : names) {
    if (is_plugin_socket(name)) plugins.push_back(probe_plugin(path, name));
  }
  return {};
}

Status probe_socket(const std::string& path) {
  GPULET_TRY(connect_unix_socket(path));
  return {};
}

using Counts = std::map<std::string, std::size_t>;

void count_devices(const device_plugin::DevicesByResource& devices, Counts& counts) {
  for (const auto& [resource, ids] : devices) {
    if (resource.str().starts_with(kNvidiaPrefix)) counts[resource.str()] += ids.size();
  }
}

}  // namespace

KubeletFacts probe_kubelet(Prober& prober, const ProbeTargets& targets, const HostTrees& trees) {
  KubeletFacts kubelet;
  const std::string dir =
      targets.kubelet_dir.empty() ? path_below(trees.host, "/var/lib/kubelet") : targets.kubelet_dir;
  kubelet.directory = dir;
  const std::string plugins = dir + "/device-plugins";
  auto read = prober.run_on_thread<KubeletFacts>(
      "the kubelet's directory", [=, host = trees.host]() -> Result<KubeletFacts> {
        KubeletFacts seen;
        seen.directory = dir;
        seen.socket = probe_socket(plugins + "/kubelet.sock");
        seen.plugins_status = probe_plugins(plugins, seen.plugins);
        for (const char* other : kOtherKubeletDirs) {
          const auto path = path_below(host, other);
          if (path != dir && probe_socket(path + "/device-plugins/kubelet.sock"))
            seen.other_directories.push_back(path);
        }
        return seen;
      });
  if (read) kubelet = std::move(*read);
  if (!read) kubelet.socket = kubelet.plugins_status = fail(read.error());

  const auto resources = device_plugin::make_pod_resources(
      prober.loop(), device_plugin::start_grpc_thread(), dir + "/pod-resources/kubelet.sock", kProbeTimeout);
  kubelet.allocatable = prober.run_on_loop<Counts>("the kubelet", kProbeTimeout, [&](auto done) {
    resources->list_allocatable([done](const Result<device_plugin::DevicesByResource>& devices) {
      if (!devices) return done(fail(devices.error()));
      Counts counts;
      count_devices(*devices, counts);
      done(std::move(counts));
    });
  });
  kubelet.held = prober.run_on_loop<Counts>("the kubelet", kProbeTimeout, [&](auto done) {
    resources->list_containers([done](const Result<std::vector<ContainerDevices>>& containers) {
      if (!containers) return done(fail(containers.error()));
      Counts counts;
      for (const auto& container : *containers) count_devices(container.devices, counts);
      done(std::move(counts));
    });
  });
  return kubelet;
}

Result<std::vector<MpsDaemon>> probe_mps_daemons(Prober& prober, const HostTrees& trees,
                                                 const std::string& root) {
  using Names = std::vector<std::string>;
  GPULET_TRY_ASSIGN(const auto names,
                    prober.run_on_thread<Names>("the MPS root", [path = path_below(trees.host, root)] {
                      return find_mps_daemons(path);
                    }));
  std::vector<MpsDaemon> daemons;
  if (names.empty()) return daemons;
  const auto mps_root = path_below(trees.host, root);
  const auto found = mps::find_control_program(trees.driver, mps_root, root, mps::shm_directory(mps_root));
  for (const auto& name : names) {
    MpsDaemon daemon{.name = name, .error = {}};
    const auto former = mps::read_former_daemon(mps_root, name);
    const unsigned protocol = former ? former->protocol : mps::DaemonSpec{}.protocol;
    const auto connected = connect_unix_socket(mps::pipe_directory(mps_root, name, protocol) + "/control");
    if (!connected) daemon.error = connected.error();
    if (connected && found) {
      std::unique_ptr<mps::ProgramCall> call;
      const bool has_namespaces = protocol == mps::kProtocolWithNamespaces;
      const auto response =
          prober.run_on_loop<std::string>("the daemon", kMpsTimeout + kProbeTimeout, [&](auto done) {
            auto started = mps::ProgramCall::start_call(
                prober.loop(),
                {.program = found->program,
                 .arguments = has_namespaces ? mps::server_status_arguments() : mps::Arguments(),
                 .environment = {"CUDA_MPS_PIPE_DIRECTORY=" +
                                 mps::pipe_directory(found->root, name, protocol)},
                 .input = has_namespaces ? std::string() : std::string(mps::kThreadPercentageCommand)},
                kMpsTimeout, done);
            if (!started) return done(fail(started.error()));
            call = std::move(*started);
          });
      if (!response) daemon.error = response.error();
    }
    daemons.push_back(std::move(daemon));
  }
  return daemons;
}

}  // namespace gpulet::doctor
