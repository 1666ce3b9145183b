// What commands do, apart from their command line: the options of each, and a function that runs it or
// renders its output. A command is in the source of its name: list.cpp (with topo), usage.cpp, place.cpp,
// labels.cpp, cordon.cpp (with uncordon), driver.cpp, config.cpp, dra.cpp, runtime.cpp, migrate.cpp,
// metrics_api.cpp. Those with more to them have a header of their own: cdi.h, cleanup.h, health.h, mig.h.
// cli/main/command_line.h lists all commands.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/observe/claim_status.h"
#include "agent/observe/limit_status.h"
#include "agent/observe/usage_json.h"
#include "base/json.h"
#include "base/loop.h"
#include "base/result.h"
#include "cli/main/command.h"
#include "config/load.h"
#include "extender/explain_client.h"
#include "health/evidence/evidence.h"
#include "inventory/snapshot.h"
#include "labels/labels.h"
#include "placement/load_board.h"

namespace gpulet::k8s {
struct ClientConfig;
}
namespace gpulet::metrics_api {
struct ServerOptions;
}
namespace gpulet::migrate {
struct Report;
}

namespace gpulet::cli {

// `gpulet list`: the node's GPUs and MIG devices. `gpulet topo`: their links, as `nvidia-smi topo -m` shows
// them, and the scores that placement adds up. Both read the driver and need no agent.

struct ListOptions {
  OutputOptions output{};
  std::string driver_root = "/";
  std::string health_file = "/run/gpulet/health.json";  // of an agent, which knows what its config excludes
  std::string socket = agent::kAgentSocket;             // of an agent, which knows what its claims wait for
};

// Sets Gpu::excluded as the agent reported last in this file; without a report nothing is excluded.
void mark_reported_excluded(const std::string& health_file, inventory::Snapshot& snapshot);
// Marks the GPUs that wait for their preflight by the agent's page /api/node as excluded.
void mark_waiting_preflights(const nlohmann::json& node, inventory::Snapshot& snapshot);

// MIG devices follow their GPU; errors of unreadable GPUs, what rules exclude, what moves and claims wait
// for, and the grades of memory limits, come last. Pure.
std::string list_report(const inventory::Snapshot& snapshot, const OutputOptions& output,
                        const agent::ClaimStatus& claims = {}, WallTime now = {},
                        const std::optional<agent::MemoryLimitStatus>& memory_limit = {});

// Exit code: 0; 1 after one line on standard error if there is no driver.
int run_list(const ListOptions& options);

struct TopoOptions {
  OutputOptions output{};
  std::string driver_root = "/";
};

// Pure.
std::string topo_report(const inventory::Snapshot& snapshot, const OutputOptions& output);

// As run_list().
int run_topo(const TopoOptions& options);

// `gpulet usage`: what Pods and namespaces have held and used of this node's GPUs, by the running agent.

struct UsageOptions {
  std::string name_space{};  // only this one; empty: all
  OutputOptions output{};
  std::string socket = agent::kAgentSocket;
};

// Rows by idle time, the longest first. Pure.
std::string usage_report(const agent::NodeUsage& usage, const UsageOptions& options);

// Exit code: 0; 1 after one line on standard error without an agent.
int run_usage(const UsageOptions& options);

// `gpulet place`: which devices a container would get on this node now, with their score and the reason.

struct PlaceOptions {
  std::size_t size = 0;
  // By index ("3", MIG devices "3:0"), UUID or device ID ("<uuid>::2"); empty `available`: all healthy ones.
  // An index or UUID means every share of that device in `available`, and its first free share in `require`.
  std::vector<std::string> available;
  std::vector<std::string> require;
  std::string policy;    // "best-effort", "tightest", "distributed", "packed"; empty: as configured
  std::string resource;  // "nvidia.com/gpu"; empty: the only one, or nvidia.com/gpu
  OutputOptions output{};
  std::string driver_root = "/";
  config::Sources sources;  // settings that determine the resources; none: the defaults
};

// The choice by the GPUs' `loads`. Pure. Errors: kInvalidArgument for an unknown name, resource or policy,
// and as placement::Chooser; kFailedPrecondition if the node has no allocatable device.
Result<std::string> place_report(const inventory::Snapshot& snapshot, const config::Config& config,
                                 const PlaceOptions& options, const placement::LoadsByGpu& loads = {});

// Reads the driver and prints the report. Exit code: 0; 1 after one line on standard error.
int run_place(const PlaceOptions& options);

// `gpulet labels`: the labels of this node by what its driver reports now, and the reason for each. Needs no
// agent and no cluster.

struct LabelsOptions {
  bool explain = false;
  OutputOptions output{};
  std::string driver_root = "/";
  config::Sources sources;  // the agent's settings, which determine how GPUs are advertised
};

// "key=value" lines; with `explain`, below each its rule, source and subject, and the value before it was
// truncated or cleaned. Pure.
std::string labels_report(const labels::Labels& labels, bool explain, const OutputOptions& output);

// Exit code: 0, also for a node without GPUs; 1 after one line on standard error if there is no driver or the
// settings are invalid.
int run_labels(LabelsOptions options);

// `gpulet cordon` and `gpulet uncordon`: take a GPU or MIG device out of service by hand, and return it. Both
// write the node's cordons file (health/state/cordons.h), which the agent watches; without an agent they take
// effect when one starts.

struct CordonOptions {
  std::string device;  // index, UUID or UUID prefix (health/report/node_health.h)
  std::string reason;  // one line, at most health::kMaxCordonReason bytes
  // The agent's report and its state directory.
  std::string health_file = "/run/gpulet/health.json";
  std::string state_dir = "/var/lib/gpulet";
  std::string driver_root = "/";
};

// Exit code: 0 if the device is cordoned (uncordoned) now, whether or not it was before; 1 if there is no
// such device, it is ambiguous, or the file cannot be written; 2 if the reason is too long or there is no
// state directory. `device` is resolved by the report of a running agent, else by `read_driver`, as an index
// may mean another GPU now. A full UUID needs neither.
CommandOutput cordon_output(health::OperatorAction action, const CordonOptions& options, WallTime now,
                            const std::function<Result<inventory::Snapshot>()>& read_driver);

// Prints cordon_output().
int run_cordon(health::OperatorAction action, const CordonOptions& options);

// `gpulet driver`: makes the node's agent close the driver and open it again (agent/driver/driver_release.h).
// The request is a file, which the agent watches; without an agent it takes effect when one starts.

enum class DriverVerb { kRelease, kAcquire, kStatus };
struct DriverOptions {
  std::string reason;                           // one line, at most agent::kMaxReleaseReason bytes
  Duration timeout = std::chrono::seconds(30);  // of release and acquire
  OutputOptions output{};                       // of status
  // The agent's report and its state directory.
  std::string health_file = "/run/gpulet/health.json";
  std::string state_dir = "/var/lib/gpulet";
};

// Waits until the agent's report says that the request is done; at once if no agent is running. Exit code: 0
// if it is done; 1 if it is not within the timeout, a node label keeps the driver released, or a file cannot
// be read or written; 2 for an invalid option. kStatus: 0 if the agent holds the driver or does not run,
// kNeedsAction if the driver is released or missing.
CommandOutput driver_output(DriverVerb verb, const DriverOptions& options, WallTime now);

// `gpulet dra check`: checks the configs of claims in a file of manifests, as the agent reads them when it
// prepares the claims. Needs no agent and no cluster.

struct DraCheckOptions {
  std::string file;
  std::string feature_gates{};  // as dra::parse_feature_gates()
  OutputOptions output{};
};

// Standard error has one line for each problem, "FILE:LINE:COLUMN: document 1, ResourceClaim team/a: FIELD:
// what is wrong". Exit code: 0; 1 for a problem, for a file that cannot be read, and for invalid gates.
CommandOutput dra_check_output(const DraCheckOptions& options);

// `gpulet dra slices`: the ResourceSlices that the agent would publish, as a List for kubectl.

struct DraSlicesOptions {
  std::string node;  // its name; empty: NODE_NAME, else the host's
  OutputOptions output{"yaml"};
  std::string driver_root = "/";
  config::Sources sources;  // the agent's settings; gpulet.dra.enabled is true whatever they are
};

// Reads the driver, and where an agent runs its health report and the records of its claims. Rules for node
// labels select nothing. Standard error has a line for each device that is left out. Exit code: 0; 1 after
// one line if the settings are invalid or there is no driver; 2 for an invalid node name.
CommandOutput dra_slices_output(const DraSlicesOptions& options);

// `gpulet config`: checks a config file, and prints the effective settings with their sources.

struct ConfigCheckOptions {
  std::string file;
  bool drop_in = false;                            // read it as NVIDIA's plugin does
  std::string mps_root = config::kDefaultMpsRoot;  // of the agent, which its DaemonSet sets and not the file
  OutputOptions output{};
};
// Prints each error as a line of standard error, "file:line:column: key: what is wrong", or "FILE: ok" on
// standard output. Warnings go to standard error. As a document, all of it goes to standard output. Exit
// code: 0 if the file can be used, else 1.
int run_config_check(const ConfigCheckOptions& options);

struct ConfigPrintOptions {
  config::Sources sources;  // flags and environment, which name the file
  OutputOptions output{};   // as a table: a config file, with the source of each value as a comment
};
// Exit code: 0; 1 after the errors if the config is invalid.
int run_config_print(const ConfigPrintOptions& options);

// `gpulet runtime configure` and `gpulet runtime check`: enable and check CDI in container engines.

struct RuntimeConfigureOptions {
  std::string runtime;                    // containerd, crio, docker or podman; or:
  bool deny_visible_devices_env = false;  // configure NVIDIA's container runtime
  bool dry_run = false;                   // print the changes and make none
  bool remove = false;                    // undo earlier changes
  bool restart = false;                   // restart the engine if needed
  std::string config{};         // its main config file, on the host; empty: the usual one, or NVIDIA's
  std::string drop_in{};        // gpulet's config file, on the host; empty: the usual place
  std::string host_root = "/";  // mount point of the host's /
  OutputOptions output{};
};

struct RuntimeCheckOptions {
  std::string host_root = "/";
  std::string driver_root = "/";
  OutputOptions output{};
};

// Exit code: 0 if the engine is configured now (with dry_run: would be); 1 if it is not, or a requested
// restart failed; 2 for an invalid argument. One line of standard error has the reason.
int run_runtime_configure(const RuntimeConfigureOptions& options);

// Exit code: 0 if every engine found is ready, 1 if one is not or none is found; a simulated node needs none.
int run_runtime_check(const RuntimeCheckOptions& options);

// `gpulet migrate check`: which of NVIDIA's programs run on a node or in a cluster, and what a migration
// changes.

struct MigrateCheckOptions {
  bool cluster = false;      // inspect a cluster by its API server, else a node by its files
  std::string root = "/";    // mount point of the node's /
  std::string kubeconfig{};  // empty: as kubectl finds one
  OutputOptions output{};
};

// Exit code: 0 if nothing needs a decision, also if nothing of NVIDIA's was found; kNeedsAction if something
// does or could not be read; 1, after one line on standard error, if nothing could be read.
int run_migrate_check(const MigrateCheckOptions& options);

// The report as text, without control characters of what was found, and as JSON.
std::string migrate_text(const migrate::Report& report, const TableStyle& style = {});
std::string migrate_json(const migrate::Report& report);

// `gpulet explain` and `kubectl gpulet explain`: why a Pod is on its node, or on none.

struct ExplainOptions {
  std::string program = "gpulet explain";  // of errors
  extender::ExplainQuery question;         // without a namespace: that of the kubeconfig's context
  std::string kubeconfig, context;         // empty: as kubectl finds them
  OutputOptions output;
};

// Exit code: 0; 1 after one line on standard error. The Pod may be a claim (claim_of_argument()).
int run_explain(const ExplainOptions& options);

struct ClaimQuery {
  std::string name_space, claim{};
  bool json = false;
  std::string socket = agent::kAgentSocket;  // of an agent on this node, which knows its reasons first
};
// "a" of "claim/a" and "resourceclaim/a"; nullopt for any other argument.
std::optional<std::string> claim_of_argument(const std::string& argument);
// Blocks. Needs get on the claim and its DeviceClasses; list on ResourceSlices and all claims for one that is
// not allocated, else on events. Errors: kNotFound, kInvalidArgument, and those of k8s::BlockingReader.
Result<std::string> explain_claim(const ClaimQuery& query, const k8s::ClientConfig& access);
// The same as text for each claim of a Pod, errors included; empty for a Pod without claims.
std::string explain_pod_claims(const ClaimQuery& query, const std::string& pod,
                               const k8s::ClientConfig& access);

// `gpulet metrics-api`: the custom metrics API of a cluster (src/metrics_api), for HorizontalPodAutoscalers.

// Flags and their environment variables; empty is the default.
struct MetricsApiOptions {
  std::string listen{}, tls_cert_file{}, tls_private_key_file{};
  std::string kubeconfig{};  // empty: the service account of the Pod
  std::string agent_namespace{}, agent_selector{};
  std::string agent_scheme = "http";  // or https
  std::uint16_t agent_port = 9400;
  std::string agent_ca_file{}, agent_server_name{}, agent_token_file{}, agent_basic_auth_file{};
  std::string agent_timeout{}, interval{}, oldest{};  // Go's durations
  std::string record{};                               // ConfigMap
  double forecast_time_scale = 1;
};

// The agents' namespace defaults to that of `access`. Errors: kInvalidArgument about the flag.
Result<metrics_api::ServerOptions> parse_metrics_api_options(const MetricsApiOptions& options,
                                                             const k8s::ClientConfig& access);

// Serves until SIGTERM or SIGINT. Exit code: 0; 1 after one line on standard error.
int run_metrics_api(const MetricsApiOptions& options,
                    const std::map<std::string, std::string, std::less<>>& environment);

}  // namespace gpulet::cli
