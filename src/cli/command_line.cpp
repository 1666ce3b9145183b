#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <optional>

#include "agent/feature_discovery.h"
#include "base/text.h"
#include "cli/agent_command.h"
#include "cli/config_command.h"
#include "cli/config_manager_command.h"
#include "cli/demo_command.h"
#include "cli/list_command.h"
#include "cli/mig_command.h"
#include "cli/mps_command.h"
#include "cli/place_command.h"
#include "cli/registrations.h"
#include "cli/runtime_command.h"
#include "cli/topo_command.h"
#include "cli/version_command.h"
#include "config/schema.h"
#include "web/listener.h"

namespace gpulet::cli {
namespace {

using Flags = std::map<std::string, std::vector<std::string>, std::less<>>;

// One option for each setting that has a flag, in the order of the table.
void add_settings(CLI::App& app, Flags& given, bool discovery = false) {
  for (const auto& setting : config::settings()) {
    if (setting.flag.empty() || (setting.discovery_only && !discovery)) continue;
    std::string names = "--" + std::string(setting.flag);
    for (const auto alias : setting.flag_aliases) {
      names += (alias.size() == 1 ? ",-" : ",--") + std::string(alias);
    }
    std::string help(setting.help);
    if (setting.default_text && setting.kind == config::Kind::kBool) {
      help += " (default " + std::string(*setting.default_text) + ")";
    }
    for (const auto variable : setting.environment) help += " [$" + std::string(variable) + "]";
    auto* option = app.add_option_function<std::vector<std::string>>(
        names,
        [&given, flag = std::string(setting.flag)](const std::vector<std::string>& values) {
          given[flag] = values;
        },
        help);
    option->expected(setting.kind == config::Kind::kBool ? 0 : 1, 1);
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    // CLI11 takes a default for the value of an option that is given without one: "--gds-enabled" would
    // be false.
    if (setting.default_text && setting.kind != config::Kind::kBool) {
      option->default_str(std::string(*setting.default_text));
    }
  }
}

// The command line as CLI11 wants it. NVIDIA's programs take Go's forms: "-name" for "--name", and "--name="
// for an empty value.
std::vector<std::string> normalised(int argc, char** argv, bool go_forms) {
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    if (go_forms && argument.size() > 2 && argument[0] == '-' && argument.find_first_not_of('-') <= 2) {
      const auto name = argument.substr(argument.find_first_not_of('-'));
      const auto end = std::min(name.find('='), name.size());
      argument = (end == 1 ? "-" : "--") + name;
      if (end == 1 && name.size() > 1) {  // "-o=FILE"
        arguments.push_back("-" + name.substr(0, 1));
        argument = name.substr(2);
      }
    }
    const auto equals = argument.find('=');
    if (argument.starts_with("--") && equals == argument.size() - 1) {
      arguments.push_back(argument.substr(0, equals));
      arguments.emplace_back();
    } else {
      arguments.push_back(std::move(argument));
    }
  }
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them last first
  return arguments;
}

// 0 for help, 2 for a command line that is wrong, said in one line.
int parse(CLI::App& app, std::vector<std::string> arguments) {
  try {
    app.parse(std::move(arguments));
    return -1;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    std::cerr << app.get_name() << ": " << error.what() << " (--help lists what there is)\n";
    return 2;
  }
}

int device_plugin(int argc, char** argv) {
  config::Sources sources;
  sources.drop_in = true;
  {
    CLI::App app{"The kubelet's device plugin for NVIDIA GPUs, by gpulet", "nvidia-device-plugin"};
    add_settings(app, sources.flags);
    app.set_version_flag("--version,-v", version());
    if (const int code = parse(app, normalised(argc, argv, true)); code >= 0) return code;
  }
  sources.environment = config::process_environment();
  return run_agent(std::move(sources));
}

int mps_control(int argc, char** argv) {
  CLI::App app{"The MPS control daemons of a node, by gpulet", "mps-control-daemon"};
  MpsOptions options;
  options.sources.drop_in = true;
  add_settings(app, options.sources.flags);
  app.set_version_flag("--version,-v", version());
  app.add_option("--root", options.root, "where this process sees the MPS root (/mps)");
  const auto* mount = app.add_subcommand("mount-shm", "mount the shared memory of MPS clients, and end");
  if (const int code = parse(app, normalised(argc, argv, true)); code >= 0) return code;
  if (mount->parsed()) return mps_mount_shm(options.root);
  options.sources.environment = config::process_environment();
  return mps_control_daemon(options);
}

int manage_config(int argc, char** argv) {
  CLI::App app{"Links a node's config into place by its label, by gpulet", "config-manager"};
  ConfigManagerOptions options;
  app.set_version_flag("--version,-v", version());
  app.add_flag("--oneshot", options.oneshot, "link once, and end")->envname("ONESHOT");
  app.add_option("--kubeconfig", options.kubeconfig, "outside a cluster: how to reach it")
      ->envname("KUBECONFIG");
  app.add_option("--node-name", options.node_name, "the node whose label counts")->envname("NODE_NAME");
  app.add_option("--node-label", options.node_label, "the label that names the config")
      ->envname("NODE_LABEL");
  app.add_option("--config-file-srcdir", options.config_file_srcdir, "the folder of configs")
      ->envname("CONFIG_FILE_SRCDIR");
  app.add_option("--config-file-dst", options.config_file_dst, "the link to the config in force")
      ->envname("CONFIG_FILE_DST");
  app.add_option("--default-config", options.default_config, "for a node without the label")
      ->envname("DEFAULT_CONFIG");
  app.add_option("--fallback-strategies", options.fallback_strategies, "named, single, empty, in this order")
      ->delimiter(',')
      ->envname("FALLBACK_STRATEGIES");
  app.add_option("--send-signal", options.send_signal, "whether the process is told of a change")
      ->envname("SEND_SIGNAL");
  app.add_option("--signal", options.signal, "which signal")->envname("SIGNAL");
  app.add_option("--process-to-signal", options.process_to_signal, "whom, by its argv[0]")
      ->envname("PROCESS_TO_SIGNAL");
  if (const int code = parse(app, normalised(argc, argv, true)); code >= 0) return code;
  return config_manager(options);
}

int discover_features(int argc, char** argv) {
  CLI::App app{"The labels of a node with NVIDIA GPUs, by gpulet", "gpu-feature-discovery"};
  agent::FeatureDiscoveryOptions options;
  options.sources.drop_in = options.sources.discovery = true;
  add_settings(app, options.sources.flags, true);
  app.set_version_flag("--version,-v", version());
  app.add_option("--kubeconfig", options.kubeconfig, "outside a cluster: how to reach it")
      ->envname("KUBECONFIG");
  app.add_option("--node-name", options.node_name, "the node that is labelled")->envname("NODE_NAME");
  app.add_option("--namespace", options.name_space, "of the NodeFeature object")->envname("NAMESPACE");
  app.add_option("--pod-name", options.pod_name, "the Pod that owns it")->envname("POD_NAME");
  // One request at a time is asked of the API server, and seldom: there is nothing to hold back.
  std::string ignored;
  app.add_option("--kube-api-qps", ignored, "accepted, without an effect")->envname("KUBE_API_QPS");
  app.add_option("--kube-api-burst", ignored, "accepted, without an effect")->envname("KUBE_API_BURST");
  if (const int code = parse(app, normalised(argc, argv, true)); code >= 0) return code;
  options.sources.environment = config::process_environment();
  return run_discovery(std::move(options));
}

// Adds a subcommand whose options are its struct's members, and what runs when it is called.
class Gpulet {
 public:
  Gpulet() : app_(std::in_place, "The GPU agent of a Kubernetes node, and its tools", "gpulet") {
    app_->require_subcommand(1);
    app_->set_version_flag("--version", version());
    add_agent();
    add_inspection();
    add_doctor(*app_, run_);
    add_health(*app_, run_);
    add_labels(*app_, run_);
    add_top(*app_, run_);
    add_config();
    add_mig();
    add_cdi(*app_, run_);
    add_scheduler(*app_, run_);
    add_runtime();
    add_metrics_api(*app_, run_);
    add_migrate(*app_, run_);
    add_cleanup(*app_, run_);
    add_demo();
    auto* command = app_->add_subcommand("version", "what this build is");
    command->add_flag("--json", version_.json, "as JSON");
    command->callback([this] { run_ = [this] { return print_version(version_); }; });
  }

  int main(int argc, char** argv) {
    if (argc > 1 && argv[1][0] != '-' && !known(argv[1])) return 2;
    if (const int code = parse(*app_, normalised(argc, argv, false)); code >= 0) return code;
    app_.reset();  // a quarter of a MiB of options, which an agent would hold for months
    return run_();
  }

 private:
  // Says so, with the nearest there is, when it is no command.
  bool known(const std::string& name) const {
    std::vector<std::string> names;
    for (const auto* command : app_->get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(command->get_name());
    }
    if (std::ranges::count(names, name) != 0) return true;
    const auto near = text::nearest(name, names);
    std::cerr << "gpulet: unknown command '" << name << "'"
              << (near ? "; did you mean " + *near + "?" : "; there are " + text::join(names, ", ")) << '\n';
    return false;
  }

  void add_agent() {
    auto* command = app_->add_subcommand("agent", "run the agent of this node");
    add_settings(*command, agent_.flags);
    command->callback([this] {
      run_ = [this] {
        agent_.environment = config::process_environment();
        return run_agent(std::move(agent_));
      };
    });
  }

  void add_inspection() {
    auto* list = app_->add_subcommand("list", "the node's GPUs");
    list->add_option("-o,--output", list_.output, "table, wide, json or yaml")
        ->check(CLI::IsMember({"table", "wide", "json", "yaml"}));
    add_driver_root(*list, list_.driver_root);
    list->callback([this] { run_ = [this] { return cli::list(list_); }; });

    auto* topo =
        app_->add_subcommand("topo", "how the GPUs are linked, and the scores that placement adds up");
    topo->add_option("-o,--output", topo_.output, "table or json")->check(CLI::IsMember({"table", "json"}));
    add_driver_root(*topo, topo_.driver_root);
    topo->callback([this] { run_ = [this] { return cli::topo(topo_); }; });

    auto* place = app_->add_subcommand("place", "which GPUs a container would get, and why");
    place->add_option("--size", place_.size, "how many GPUs")->required();
    place->add_option("--available", place_.available, "GPUs to choose from, by index or UUID (all)")
        ->delimiter(',');
    place->add_option("--require", place_.require, "GPUs that must be among them")->delimiter(',');
    place
        ->add_option("--policy", place_.policy,
                     "best-effort or tightest; for shared devices distributed or packed")
        ->check(CLI::IsMember({"best-effort", "tightest", "distributed", "packed"}));
    place->add_option("--resource", place_.resource, "which resource, where there are several");
    place->add_option("-o,--output", place_.output, "text or json")->check(CLI::IsMember({"text", "json"}));
    add_driver_root(*place, place_.driver_root);
    place->add_option_function<std::string>(
        "--config-file", [this](const std::string& file) { place_.sources.flags["config-file"] = {file}; },
        "the agent's settings, which decide what is offered");
    place->callback([this] { run_ = [this] { return cli::place(place_); }; });
  }

  void add_config() {
    auto* command = app_->add_subcommand("config", "check and print settings");
    command->require_subcommand(1);
    auto* check =
        command->add_subcommand("check", "whether a config file is right: every mistake, one a line");
    check->add_option("FILE", check_.file, "the file")->required();
    check->add_flag("--drop-in", check_.drop_in, "as NVIDIA's plugin reads it: unknown keys are warnings");
    check->callback([this] { run_ = [this] { return config_check(check_); }; });

    auto* print = command->add_subcommand("print", "the effective settings, each with where it came from");
    print->add_option("-o,--output", print_.output, "yaml or json")->check(CLI::IsMember({"yaml", "json"}));
    print->add_flag("--drop-in", print_.sources.drop_in, "as NVIDIA's plugin reads them");
    add_settings(*print, print_.sources.flags);
    print->callback([this] {
      run_ = [this] {
        print_.sources.environment = config::process_environment();
        return config_print(print_);
      };
    });
  }

  // The flags are nvidia-mig-parted's, and some of our own.
  void add_mig() {
    auto* command = app_->add_subcommand("mig", "MIG layouts: plan, apply, assert, export");
    command->require_subcommand(1);
    const auto add = [&](const char* name, const char* help, MigVerb verb) {
      auto* made = command->add_subcommand(name, help);
      made->add_option("--gpu", mig_.gpus, "only these GPUs, by index or UUID (all)")->delimiter(',');
      add_driver_root(*made, mig_.driver_root);
      made->callback([this, verb] {
        run_ = [this, verb] {
          mig_.environment = config::process_environment();
          return mig(verb, mig_);
        };
      });
      return made;
    };
    const auto add_layout = [&](CLI::App& made) {
      made.add_option(
          "-f,--config-file", mig_.config_file,
          "mig-parted's file of layouts, - for standard input (layouts that the hardware offers)");
      made.add_option("-c,--selected-config", mig_.selected_config, "which of them");
      made.add_flag("-m,--mode-only", mig_.mode_only, "only MIG on or off, and no instances");
      made.add_option("-o,--output", mig_.output, "text or json")->check(CLI::IsMember({"text", "json"}));
    };
    const auto add_pods = [&](CLI::App& made) {
      made.add_option("--kubelet-dir", mig_.kubelet_dir, "the kubelet's root folder (/var/lib/kubelet)");
      made.add_flag("--ignore-pods", mig_.ignore_pods, "do not ask the kubelet which Pods hold a device");
    };
    auto* plan = add("plan", "what would be done, and who is in the way", MigVerb::kPlan);
    auto* apply = add("apply", "make it so; what is in use stays", MigVerb::kApply);
    auto* holds = add("assert", "whether the GPUs are so", MigVerb::kAssert);
    auto* write = add("export", "what the GPUs have now, as a file of layouts", MigVerb::kExport);
    for (auto* made : {plan, apply, holds}) add_layout(*made);
    for (auto* made : {plan, apply}) add_pods(*made);
    apply->add_flag("--dry-run", mig_.dry_run, "only say what would be done");
    holds->add_flag("-a,--valid-config", mig_.valid_config, "only whether the GPUs can have it");
    write->add_option("-o,--output,--output-format", mig_.output, "yaml or json")
        ->check(CLI::IsMember({"yaml", "json"}));
    write->add_option("-l,--config-label", mig_.config_label, "the config's name (current)");
  }

  void add_runtime() {
    auto* command = app_->add_subcommand("runtime", "container engines: CDI on, and whether it is");
    command->require_subcommand(1);
    const auto add_common = [](CLI::App& made, std::string& host_root, std::string& output) {
      made.add_option("--host-root", host_root, "where the host's / is mounted (/)");
      made.add_option("-o,--output", output, "text or json")->check(CLI::IsMember({"text", "json"}));
    };
    auto* configure = command->add_subcommand("configure", "turn CDI on in an engine, or take that back");
    configure->add_option("--runtime", runtime_.runtime, "containerd, crio, docker or podman")
        ->required()
        ->check(CLI::IsMember({"containerd", "crio", "docker", "podman"}));
    configure->add_flag("--dry-run", runtime_.dry_run, "only say what would change");
    configure->add_flag("--remove", runtime_.remove, "take back what was changed");
    configure->add_flag("--restart", runtime_.restart, "restart the engine when that is needed");
    configure->add_option("--config", runtime_.config, "the engine's main file, as the host sees it");
    configure->add_option("--drop-in-config", runtime_.drop_in, "our own file, as the host sees it");
    add_common(*configure, runtime_.host_root, runtime_.output);
    configure->callback([this] { run_ = [this] { return runtime_configure(runtime_); }; });
    auto* check = command->add_subcommand("check", "which engines there are, and whether each is fit");
    add_common(*check, runtime_check_.host_root, runtime_check_.output);
    check->callback([this] { run_ = [this] { return runtime_check(runtime_check_); }; });
  }

  void add_demo() {
    auto* command =
        app_->add_subcommand("demo", "a simulated node: discovery, Pods, a broken GPU and its return");
    command->add_option("--machine", demo_.machine, "a machine that gpulet-sim knows, or a YAML file");
    command->callback([this] { run_ = [this] { return demo(demo_); }; });
  }

  static void add_driver_root(CLI::App& command, std::string& driver_root) {
    command.add_option("--driver-root", driver_root, "where the driver's files are")
        ->envname("DRIVER_ROOT_CTR_PATH");
  }

  std::optional<CLI::App> app_;
  Run run_;
  config::Sources agent_;
  ListOptions list_;
  TopoOptions topo_;
  PlaceOptions place_;
  ConfigCheckOptions check_;
  ConfigPrintOptions print_;
  MigOptions mig_;
  RuntimeConfigureOptions runtime_;
  RuntimeCheckOptions runtime_check_;
  DemoOptions demo_;
  VersionOptions version_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view name = text::base_name(argc > 0 ? argv[0] : "gpulet");
  if (name == "gpulet-listener") web::run_listener_child();
  if (name == "nvidia-device-plugin") return device_plugin(argc, argv);
  if (name == "mps-control-daemon") return mps_control(argc, argv);
  if (name == "config-manager") return manage_config(argc, argv);
  if (name == "gpu-feature-discovery") return discover_features(argc, argv);
  return Gpulet().main(argc, argv);
}

}  // namespace gpulet::cli
