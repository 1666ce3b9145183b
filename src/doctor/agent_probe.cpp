// The agent of this node, by what it serves on its socket, or at an address.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "agent/cdi_care.h"
#include "base/text.h"
#include "cluster/objects.h"
#include "cluster/resolve.h"
#include "config/load.h"
#include "doctor/probes.h"
#include "web/fetch.h"

namespace gpulet::doctor {
namespace {

using cluster::member;
using cluster::text_of;
using nlohmann::json;

constexpr std::size_t kMaxDocument = 16u << 20;

std::string index_of(const json& object) {
  const auto& index = member(object, "index");
  return index.is_number_unsigned() ? std::to_string(index.get<std::uint64_t>()) : std::string("?");
}

bool is_offered(const std::string& state) {
  return state.empty() || state == "healthy" || state == "degraded" || state == "unmonitored";
}

AgentDevice device_of(const json& object, std::string name) {
  AgentDevice device{.name = std::move(name),
                     .uuid = text_of(member(object, "uuid")),
                     .state = text_of(member(object, "state")),
                     .reason = text_of(member(object, "reason")),
                     .offered = true,
                     .resource = text_of(member(object, "resource"))};
  const auto& offered = member(object, "offered");
  device.offered = offered.is_boolean() ? offered.get<bool>() : is_offered(device.state);
  return device;
}

class AskingAgent {
 public:
  AskingAgent(Loop& loop, const Places& places) : loop_(loop), places_(places) {
    socket_ = places.socket.empty() ? below(places.host_root, "/run/gpulet/agent.sock") : places.socket;
  }

  void get(const std::string& path, std::function<void(Result<std::string>)> done) {
    path_ = path;
    done_ = std::move(done);
    if (where_) return open();
    if (places_.agent_host.empty()) return connect(web::endpoint_of(socket_));
    resolver_.emplace(loop_, places_.agent_host, places_.agent_port);
    resolver_->resolve([this](const Result<cluster::Addresses>& found) {
      if (!found) return connect(fail(found.error()));
      if (found->empty()) return connect(fail(Code::kUnavailable, "has no address", places_.agent_host));
      connect(web::Endpoint{found->front().storage, found->front().size});
    });
  }

 private:
  void connect(const Result<web::Endpoint>& where) {
    if (!where) return done_(fail(where.error()));
    where_ = *where;
    open();
  }
  void open() {
    text_.clear();
    auto fetch = web::Fetch::start(loop_, *where_, "localhost", path_,
                                   {.piece = [this](std::string_view piece) -> Status {
                                      if (text_.size() + piece.size() > kMaxDocument)
                                        return fail(Code::kIo, "the answer is too large", path_);
                                      text_ += piece;
                                      return {};
                                    },
                                    .ended =
                                        [this](const Status& status) {
                                          Result<std::string> text = std::move(text_);
                                          if (!status) text = fail(status.error());
                                          fetch_.reset();
                                          done_(std::move(text));
                                        }});
    if (!fetch) return done_(fail(explained(fetch.error())));
    fetch_ = std::move(*fetch);
  }
  Error explained(const Error& error) const {
    if (!places_.agent_host.empty()) return error;
    if (error.code() == Code::kNotFound)
      return {error.code(), "no agent runs here: there is no such socket", socket_};
    return {error.code(), error.message(), socket_};
  }

  Loop& loop_;
  const Places& places_;
  std::string socket_, path_, text_;
  std::optional<web::Endpoint> where_;
  std::optional<cluster::Resolver> resolver_;
  std::unique_ptr<web::Fetch> fetch_;
  std::function<void(Result<std::string>)> done_;
};

}  // namespace

Result<Agent> parse_agent(const std::string& document, std::string& config) {
  const auto node = json::parse(document, nullptr, false);
  if (!node.is_object() || !member(node, "gpus").is_array())
    return fail(Code::kInvalidArgument, "what answers there is no agent of gpulet");
  Agent agent;
  agent.version = text_of(member(node, "version"));
  config = text_of(member(node, "config"));
  for (const auto& problem : member(node, "problems")) agent.problems.push_back(text_of(problem));
  for (const auto& gpu : member(node, "gpus")) {
    agent.devices.push_back(device_of(gpu, "GPU " + index_of(gpu)));
    const auto& devices = member(member(gpu, "mig"), "devices");
    for (const auto& device : devices)
      agent.devices.push_back(device_of(device, "MIG " + index_of(gpu) + ":" + index_of(device)));
  }
  for (const auto& event : member(node, "events")) {
    const auto message = text_of(member(event, "message"));
    const bool refused = message.find("answered 403") != std::string::npos;
    if (refused && std::ranges::find(agent.refusals, message) == agent.refusals.end())
      agent.refusals.push_back(message);
  }
  return agent;
}

Result<Agent> ask_agent(Prober& prober, const Places& places, std::string& config,
                        std::vector<ArchiveFile>& files) {
  AskingAgent asking(prober.loop(), places);
  const auto get = [&](const std::string& path) {
    return prober.on_loop<std::string>("the agent", kProbeLimit,
                                       [&](auto done) { asking.get(path, std::move(done)); });
  };
  GPULET_TRY_ASSIGN(const auto document, get("/api/node"));
  files.push_back({"agent/node.json", document});
  GPULET_TRY_ASSIGN(auto agent, parse_agent(document, config));
  files.push_back({"agent/config.yaml", config});
  for (const std::string path : {"/api/now", "/metrics"}) {
    if (auto text = get(path))
      files.push_back({"agent/" + std::string(text::base_name(path)) + ".txt", std::move(*text)});
  }
  return agent;
}

Result<Settings> settings_of(const Result<Agent>& agent, const std::string& config, const Places& places) {
  config::Sources sources;
  Settings settings;
  if (agent) {
    settings.source = "the agent's settings";
    sources.file_path = settings.source;
    sources.file_content = config;
  } else if (!places.config_file.empty()) {
    settings.source = places.config_file;
    sources.flags["config-file"] = {places.config_file};
    GPULET_TRY(config::read_config_file(sources));
  } else {
    return fail(Code::kNotFound, "no agent runs here to ask for its settings; --config-file names them");
  }
  sources.drop_in = true;  // what is unknown to this version is no reason to know nothing
  GPULET_TRY_ASSIGN(const auto loaded, config::load(sources));
  settings.cdi = agent::uses_cdi(loaded.config);
  settings.cdi_folder = loaded.config.gpulet.cdi.spec_dir;
  if (!loaded.config.flags.mps_root.empty()) settings.mps_root = loaded.config.flags.mps_root;
  return settings;
}

}  // namespace gpulet::doctor
