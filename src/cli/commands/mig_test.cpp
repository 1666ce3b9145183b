// The commands on the simulated driver; tests/sim/mig_command_test.cpp tests them with a kubelet and Pods.
#include "cli/commands/mig.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/main/command_line.h"
#include "mig/test_states.h"
#include "nvml/test_sim_root.h"
#include "sim/kubelet/kubelet.h"

namespace gpulet::cli {
namespace {

using Json = nlohmann::json;

constexpr const char* kBalanced = "2 \u00d7 1g.10gb + 1 \u00d7 2g.20gb + 1 \u00d7 3g.40gb";
constexpr unsigned kPid = 4'100'000'000;  // of no process here

class MigCommand : public testing::Test {
 protected:
  void start_machine(const std::string& machine) {
    root_.emplace(*mig::states::test_machine(machine));
    options_.driver_root = root_->sim_root();
    options_.kubelet_dir = root_->sim_root() + "/kubelet";
    file_ = root_->sim_root() + "/layouts.yaml";
  }
  void SetUp() override { start_machine("hgx-h100"); }

  // With these as flags and with no Pods to ask about, as there is no kubelet.
  CommandOutput run_mig_command(MigVerb verb, const std::string& config, std::vector<std::string> gpus = {}) {
    MigOptions options = options_;
    options.selected_config = config;
    options.gpus = std::move(gpus);
    return mig_output(verb, options);
  }
  Json run_mig_json(MigVerb verb, const std::string& config, std::vector<std::string> gpus = {}) {
    options_.output = "json";
    const auto answer = run_mig_command(verb, config, std::move(gpus));
    options_.output = "";
    return Json::parse(answer.out);
  }
  void write_file(const std::string& configs) {
    root_->add_root_file("layouts.yaml", "version: v1\nmig-configs:\n" + configs);
    options_.config_file = file_;
  }
  mig::State mig_state_of(std::size_t gpu) { return mig::states::state_of(root_->edit_machine()->gpus[gpu]); }
  std::string layout_text(std::size_t gpu) {
    return mig::layout_text(mig::current_layout(mig_state_of(gpu)));
  }
  std::string gpu_uuid(std::size_t gpu) { return root_->edit_machine()->gpus[gpu].uuid; }
  // A process on the instance at that memory slice.
  void add_process(std::size_t gpu, unsigned start) {
    const auto machine = root_->edit_machine();
    for (const auto& instance : machine->gpus[gpu].mig.instances) {
      if (instance.used == 0 || instance.start != start) continue;
      sim::Process process{};
      process.pid = kPid;
      process.gpu_instance = instance.id;
      process.compute_instance = 0;
      ASSERT_TRUE(sim::add_process(machine->gpus[gpu], process));
      return;
    }
    FAIL() << "no instance at " << start;
  }
  int run_main(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"gpulet", "mig"});
    arguments.insert(arguments.end(), {"--driver-root", root_->sim_root()});
    std::vector<char*> argv;
    for (auto& argument : arguments) argv.push_back(argument.data());
    return run_program(static_cast<int>(argv.size()), argv.data());
  }

  std::optional<nvml::SimRoot> root_;
  MigOptions options_;
  std::string file_;
};

TEST_F(MigCommand, PlanPrintsTheStepsAndChangesNothing) {
  const auto answer = run_mig_command(MigVerb::kPlan, "all-balanced", {"0"});
  EXPECT_EQ(answer.exit_code, 0);
  EXPECT_EQ(answer.out,
            "GPU 0: enable MIG; create 2g.20gb at 0-1, 1g.10gb at 2, 1g.10gb at 3, 3g.40gb at 4-7\n");
  EXPECT_EQ(answer.err, "gpulet mig plan: no kubelet below " + options_.kubelet_dir +
                            ": only processes count as users of a GPU\n");
  EXPECT_EQ(layout_text(0), "MIG disabled");
  options_.dry_run = true;
  EXPECT_EQ(run_mig_command(MigVerb::kApply, "all-balanced", {"0"}).out, answer.out);
  EXPECT_EQ(layout_text(0), "MIG disabled");
  const auto nothing = run_mig_command(MigVerb::kPlan, "all-disabled", {"0"});
  EXPECT_EQ(nothing.out, "GPU 0: nothing to do\n");
  EXPECT_EQ(nothing.err, "") << "the kubelet does not matter to it";
}

TEST_F(MigCommand, ApplyChangesTheLayoutAndPrintsIt) {
  const auto applied = run_mig_command(MigVerb::kApply, "all-balanced");
  EXPECT_EQ(applied.exit_code, 0);
  EXPECT_EQ(applied.out.substr(0, applied.out.find('\n')),
            "GPU 0: done: enable MIG; create 2g.20gb at 0-1, 1g.10gb at 2, 1g.10gb at 3, 3g.40gb at 4-7");
  EXPECT_NE(applied.out.find(std::string("\n\nGPU 0 has ") + kBalanced + "\nGPU 1 has "), std::string::npos)
      << applied.out;
  for (std::size_t gpu = 0; gpu < 8; ++gpu) EXPECT_EQ(layout_text(gpu), kBalanced);
  const auto again = run_mig_command(MigVerb::kApply, "all-balanced", {"7"});
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_EQ(again.out.substr(0, again.out.find(';')), "GPU 7: nothing to do");
  EXPECT_EQ(run_mig_command(MigVerb::kApply, "all-disabled").exit_code, 0);
  for (std::size_t gpu = 0; gpu < 8; ++gpu) EXPECT_EQ(layout_text(gpu), "MIG disabled");
}

TEST_F(MigCommand, ABlockedGpuIsReportedAndOthersAreChanged) {
  ASSERT_EQ(run_mig_command(MigVerb::kApply, "all-1g.10gb", {"0", gpu_uuid(3)}).exit_code, 0);
  ASSERT_EQ(layout_text(3), "7 \u00d7 1g.10gb");
  ASSERT_EQ(layout_text(1), "MIG disabled");
  add_process(0, 4);
  const std::string uuid_held = mig_state_of(0).instances.at(4).compute.at(0).uuid.str();
  const auto planned = run_mig_command(MigVerb::kPlan, "all-balanced", {"0"});
  EXPECT_EQ(planned.exit_code, kNeedsAction);
  EXPECT_EQ(planned.out,
            "GPU 0: blocked; would destroy 1g.10gb at 0, 1g.10gb at 1, 1g.10gb at 4, 1g.10gb at 5, 1g.10gb "
            "at 6; create 2g.20gb at 0-1, 3g.40gb at 4-7; keep 1g.10gb at 2, 1g.10gb at 3\n"
            "GPU 0: blocked by process 4100000000, on 1g.10gb at 4\n");
  const auto told = run_mig_json(MigVerb::kPlan, "all-balanced", {"0"})["gpus"][0];
  EXPECT_EQ(told["outcome"], "blocked");
  EXPECT_EQ(told["plan"]["blockedBy"], (Json{"process 4100000000, on 1g.10gb at 4"}));
  EXPECT_EQ(told["plan"]["destroy"], Json::array());
  EXPECT_NE(told["plan"]["would"].get<std::string>().find("create 2g.20gb at 0-1"), std::string::npos);
  const auto applied = run_mig_command(MigVerb::kApply, "all-balanced", {"0", "3"});
  EXPECT_EQ(applied.exit_code, kNeedsAction);
  EXPECT_EQ(layout_text(0), "7 \u00d7 1g.10gb");
  EXPECT_EQ(mig_state_of(0).instances.at(4).compute.at(0).uuid.str(), uuid_held);
  EXPECT_EQ(layout_text(3), kBalanced) << applied.out;
}

TEST_F(MigCommand, JsonHasTheWholePlan) {
  ASSERT_EQ(run_mig_command(MigVerb::kApply, "all-1g.10gb", {"2"}).exit_code, 0);
  const auto whole = run_mig_json(MigVerb::kPlan, "all-3g.40gb", {"2"});
  EXPECT_EQ(whole["config"], "all-3g.40gb");
  EXPECT_TRUE(whole["configFile"].is_null());
  EXPECT_EQ(whole["podsKnown"], false);
  const auto& gpu = whole["gpus"][0];
  EXPECT_EQ(gpu["index"], 2);
  EXPECT_EQ(gpu["uuid"], gpu_uuid(2));
  EXPECT_EQ(gpu["outcome"], "to-do");
  EXPECT_EQ(gpu["now"], (Json{{"migEnabled", true}, {"migDevices", {{"1g.10gb", 7}}}}));
  EXPECT_EQ(gpu["wanted"]["migDevices"], (Json{{"3g.40gb", 2}}));
  EXPECT_EQ(gpu["plan"]["destroy"].size(), 7u);
  EXPECT_EQ(gpu["plan"]["destroyCompute"].size(), 7u);
  EXPECT_TRUE(gpu["plan"]["setMode"].is_null());
  EXPECT_EQ(
      gpu["plan"]["create"][1],
      (Json{{"profile", "3g.40gb"}, {"placement", {{"start", 4}, {"size", 4}}}, {"devices", {"3g.40gb"}}}));
  const auto applied = run_mig_json(MigVerb::kApply, "all-3g.40gb", {"2"})["gpus"][0];
  EXPECT_EQ(applied["outcome"], "done");
  EXPECT_EQ(applied["now"]["migDevices"], (Json{{"3g.40gb", 2}}));
  EXPECT_EQ(applied["done"].back(), "created 3g.40gb at 4-7");
}

TEST_F(MigCommand, AssertPrintsGpusThatDiffer) {
  ASSERT_EQ(run_mig_command(MigVerb::kApply, "all-balanced", {"0", "1"}).exit_code, 0);
  const auto same = run_mig_command(MigVerb::kAssert, "all-balanced", {"0", "1"});
  EXPECT_EQ(same.exit_code, 0);
  EXPECT_EQ(same.out, "every GPU matches all-balanced\n");
  const auto other = run_mig_command(MigVerb::kAssert, "all-balanced", {"1", "2"});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_EQ(other.out, std::string("GPU 2: has MIG disabled; all-balanced requires ") + kBalanced + "\n");
  EXPECT_EQ(run_mig_json(MigVerb::kAssert, "all-balanced", {"1", "2"})["gpus"][1]["outcome"], "to-do");
  // An instance without a device, and a mode that a reset will change, are no such layout either.
  ASSERT_EQ(run_mig_command(MigVerb::kApply, "all-enabled", {"3"}).exit_code, 0);
  ASSERT_NE(mig::states::add_instance(root_->edit_machine()->gpus[3], "2g.20gb", 0, {1}), nullptr);
  {
    const auto machine = root_->edit_machine();
    auto& gpu = machine->gpus[3];
    for (auto& instance : gpu.mig.instances) {
      if (instance.used == 0) continue;
      ASSERT_EQ(sim::destroy_compute_instance(gpu, instance, 0), sim::MigOutcome::kOk);
    }
    machine->gpus[1].mig.pending = 0;
  }
  EXPECT_EQ(run_mig_command(MigVerb::kAssert, "all-enabled", {"3"}).out,
            "GPU 3: has no instances; all-enabled requires no instances; destroy 2g.20gb at 0-1\n");
  EXPECT_EQ(run_mig_command(MigVerb::kAssert, "all-balanced", {"1"}).out,
            std::string("GPU 1: has ") + kBalanced + " (pending: disabled); all-balanced requires " +
                kBalanced + "\n");
  options_.mode_only = true;
  EXPECT_EQ(run_mig_command(MigVerb::kAssert, "all-1g.10gb", {"0", "3"}).exit_code, 0);
  EXPECT_EQ(run_mig_command(MigVerb::kAssert, "all-1g.10gb", {"2"}).out,
            "GPU 2: has MIG disabled; all-1g.10gb requires MIG enabled\n");
}

TEST_F(MigCommand, ModeOnlyKeepsInstances) {
  ASSERT_EQ(run_mig_command(MigVerb::kApply, "all-balanced", {"0"}).exit_code, 0);
  options_.mode_only = true;
  const auto applied = run_mig_command(MigVerb::kApply, "all-7g.80gb", {"0", "1"});
  EXPECT_EQ(applied.exit_code, 0) << applied.err;
  EXPECT_EQ(layout_text(0), kBalanced);
  EXPECT_EQ(layout_text(1), "no instances");
}

TEST_F(MigCommand, ExportedLayoutsCanBeApplied) {
  ASSERT_EQ(run_mig_command(MigVerb::kApply, "all-balanced", {"0", "1"}).exit_code, 0);
  {
    const auto machine = root_->edit_machine();
    mig::states::set_mig_mode(machine->gpus[5]);
    ASSERT_NE(mig::states::add_instance(machine->gpus[5], "2g.20gb", 2, {1, 1}), nullptr);
  }
  options_.config_label = "mine";
  const auto exported = run_mig_command(MigVerb::kExport, "");
  EXPECT_EQ(exported.exit_code, 0);
  EXPECT_EQ(exported.out.substr(0, exported.out.find("    - devices: [2, 3")), R"(version: v1
mig-configs:
  mine:
    - devices: [0, 1]
      mig-enabled: true
      mig-devices:
        1g.10gb: 2
        2g.20gb: 1
        3g.40gb: 1
)");
  options_.output = "json";
  const auto as_json = run_mig_command(MigVerb::kExport, "");
  options_.output = "";
  EXPECT_EQ(Json::parse(as_json.out)["mig-configs"]["mine"][2],
            (Json{{"devices", {5}}, {"mig-enabled", true}, {"mig-devices", {{"1c.2g.20gb", 2}}}}));
  // Of another node: both forms make the same of it.
  start_machine("hgx-h100");
  for (const auto& text : {exported.out, as_json.out}) {
    root_->add_root_file("layouts.yaml", text);
    options_.config_file = file_;
    EXPECT_EQ(run_mig_command(MigVerb::kAssert, "").exit_code, 1);
    EXPECT_EQ(run_mig_command(MigVerb::kApply, "").exit_code, 0);
    EXPECT_EQ(run_mig_command(MigVerb::kAssert, "").exit_code, 0);
    EXPECT_EQ(run_mig_command(MigVerb::kExport, "").out, exported.out);
    options_.config_file.clear();
    ASSERT_EQ(run_mig_command(MigVerb::kApply, "all-disabled").exit_code, 0);
  }
}

TEST_F(MigCommand, RejectsInvalidLayoutsInOneLineWithoutAChange) {
  const auto before = run_mig_command(MigVerb::kExport, "").out;
  struct Case {
    const char *configs, *config, *error;
  };
  const Case cases[] = {
      {"  c:\n    - devices: all\n      mig-enabled: true\n      mig-devices: {1g.99gb: 1}\n", "c",
       ":4:7: GPU 0 (NVIDIA H100 80GB HBM3) has no profile 1g.99gb; did you mean 1g.10gb? It has 7g.80gb, "
       "4g.40gb, 3g.40gb, 2g.20gb, 1g.20gb, 1g.10gb, 1g.10gb+me; 7 more GPUs do not support theirs; nothing "
       "was "
       "changed"},
      // GPU 0 could have its layout.
      {"  c:\n    - {devices: [0], mig-enabled: true, mig-devices: {7g.80gb: 1}}\n    - {devices: [1], "
       "mig-enabled: true, mig-devices: {1g.10gb: 6, 2g.20gb: 1}}\n",
       "c",
       ":5:7: 6 \u00d7 1g.10gb + 1 \u00d7 2g.20gb do not fit on GPU 1 (NVIDIA H100 80GB HBM3); the nearest "
       "that does: 5 \u00d7 1g.10gb + 1 \u00d7 2g.20gb; nothing was changed"},
      {"  c:\n    - {devices: two, mig-enabled: false}\n", "c",
       ":4:17: mig-configs.c[0].devices: expected all or a list of indices, found 'two'"},
      {"  c:\n    - {devices: all, mig-enabled: false}\n", "d",
       "no config 'd' in FILE; did you mean c? Available: c"},
      {"  c:\n    - {devices: all, mig-enabled: false}\n  d:\n    - {devices: all, mig-enabled: false}\n", "",
       ": no layout selected; choose one with -c: c, d"},
  };
  for (const auto& [configs, config, error] : cases) {
    write_file(configs);
    const auto answer = run_mig_command(MigVerb::kApply, config);
    std::string expected = error;
    if (const auto at = expected.find("FILE"); at != std::string::npos) {
      expected.replace(at, 4, file_);
    } else {
      expected = file_ + expected;
    }
    EXPECT_EQ(answer.exit_code, 1);
    EXPECT_EQ(answer.out, "");
    const auto last = answer.err.rfind("gpulet mig apply: ");
    EXPECT_EQ(answer.err.substr(last), "gpulet mig apply: " + expected + "\n");
    options_.config_file.clear();
    EXPECT_EQ(run_mig_command(MigVerb::kExport, "").out, before);
  }
  options_.config_file = root_->sim_root() + "/none.yaml";
  EXPECT_EQ(run_mig_command(MigVerb::kPlan, "c").exit_code, 1);
}

TEST_F(MigCommand, AGpuWithoutMig) {
  start_machine("t4");
  write_file("  c:\n    - devices: all\n      mig-enabled: true\n      mig-devices: {}\n");
  const auto refused = run_mig_command(MigVerb::kApply, "c", {"0"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.err, "gpulet mig apply: " + file_ +
                             ":4:7: GPU 0 (Tesla T4) does not support MIG; nothing was changed\n");
  write_file(
      "  c:\n    - {devices: all, mig-enabled: false}\n  d:\n    - {devices: [99], mig-enabled: true, "
      "mig-devices: {}}\n");
  EXPECT_EQ(run_mig_command(MigVerb::kApply, "c").exit_code, 0);
  EXPECT_EQ(run_mig_command(MigVerb::kAssert, "c").exit_code, 0);
  EXPECT_EQ(run_mig_command(MigVerb::kPlan, "d", {"0"}).out, "GPU 0: unchanged: not in the config\n");
  for (const MigVerb verb : {MigVerb::kApply, MigVerb::kAssert}) {
    for (const bool valid_config : {false, true}) {
      options_.valid_config = valid_config;
      const auto unmatched = run_mig_command(verb, "d", {"0"});
      EXPECT_EQ(unmatched.exit_code, 1);
      EXPECT_EQ(unmatched.err, std::string("gpulet mig ") + (verb == MigVerb::kApply ? "apply" : "assert") +
                                   ": " + file_ + ": no entry of d matches GPU 0 (Tesla T4, 0x1eb810de)\n");
    }
  }
  options_.valid_config = false;
  options_.config_file.clear();
  const auto unknown = run_mig_command(MigVerb::kPlan, "all-1g.10gb");
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_NE(unknown.err.find("no config 'all-1g.10gb' in the layouts of this node's GPUs"),
            std::string::npos);
}

TEST_F(MigCommand, AFailedStepIsRolledBackAndReported) {
  ASSERT_EQ(run_mig_command(MigVerb::kApply, "all-1g.10gb", {"0"}).exit_code, 0);
  // Fourteen steps destroy; the first that creates fails.
  root_->edit_machine()->gpus[0].faults.mig_error = 999;
  root_->edit_machine()->gpus[0].faults.mig_skip = 14;
  const auto failed = run_mig_command(MigVerb::kApply, "all-3g.40gb", {"0", "1"});
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_NE(failed.out.find("GPU 0: as-before: "), std::string::npos) << failed.out;
  EXPECT_NE(failed.out.find("rolled back: "), std::string::npos) << failed.out;
  EXPECT_EQ(layout_text(0), "7 \u00d7 1g.10gb");
  EXPECT_EQ(layout_text(1), "2 \u00d7 3g.40gb") << "each GPU on its own";
}

TEST_F(MigCommand, AModeThatNeedsAReset) {
  start_machine("dgx-a100");
  root_->edit_machine()->gpus[0].mig.passthrough = 1;
  const auto applied = run_mig_command(MigVerb::kApply, "all-3g.40gb", {"0"});
  EXPECT_EQ(applied.exit_code, kNeedsAction);
  EXPECT_NE(
      applied.out.find(
          "GPU 0: MIG mode is set and needs a reset: `gpulet driver release && nvidia-smi --gpu-reset -i 0; "
          "gpulet driver acquire`"),
      std::string::npos)
      << applied.out;
  EXPECT_NE(applied.out.find("\nGPU 0 has MIG disabled (pending: enabled)\n"), std::string::npos);
  EXPECT_EQ(run_mig_command(MigVerb::kAssert, "all-3g.40gb", {"0"}).exit_code, 1);
}

TEST_F(MigCommand, AnUnreadableGpuDoesNotBlockOthers) {
  root_->edit_machine()->gpus[1].faults.lost = 1;
  const auto applied = run_mig_command(MigVerb::kApply, "all-balanced", {"0", "1"});
  EXPECT_EQ(applied.exit_code, 1);
  EXPECT_NE(applied.out.find("GPU 1: cannot be read: "), std::string::npos) << applied.out;
  EXPECT_EQ(layout_text(0), kBalanced);
  EXPECT_EQ(run_mig_command(MigVerb::kAssert, "all-balanced", {"1"}).exit_code, 1);
  const auto exported = run_mig_command(MigVerb::kExport, "");
  EXPECT_EQ(exported.exit_code, 1);
  EXPECT_NE(exported.err.find("GPU 1 is skipped"), std::string::npos);
  EXPECT_NE(exported.out.find("- devices: [2, 3, 4, 5, 6, 7]"), std::string::npos);
}

TEST_F(MigCommand, ChangesNothingWithoutTheKubeletsResponse) {
  root_->add_root_file("kubelet/pod-resources/kubelet.sock", "no socket");
  const auto planned = run_mig_command(MigVerb::kPlan, "all-balanced", {"0"});
  EXPECT_EQ(planned.exit_code, 0);
  EXPECT_NE(planned.err.find("cannot tell which Pods use the GPUs"), std::string::npos);
  const auto applied = run_mig_command(MigVerb::kApply, "all-balanced", {"0"});
  EXPECT_EQ(applied.exit_code, 1);
  EXPECT_EQ(layout_text(0), "MIG disabled");
  options_.ignore_pods = true;
  EXPECT_EQ(run_mig_command(MigVerb::kApply, "all-balanced", {"0"}).exit_code, 0);
  EXPECT_EQ(layout_text(0), kBalanced);
}

TEST_F(MigCommand, TheKubeletIsQueriedBeforeEachStep) {
  std::filesystem::create_directories(options_.kubelet_dir);
  const auto kubelet = sim::Kubelet::start_kubelet({.dir = options_.kubelet_dir});
  ASSERT_TRUE(kubelet) << kubelet.error().full_message();
  EXPECT_EQ(run_mig_json(MigVerb::kPlan, "all-balanced", {"0"})["podsKnown"], true);
  for (const char* layout : {"all-1g.10gb", "all-balanced", "all-disabled"}) {
    const auto applied = run_mig_command(MigVerb::kApply, layout, {"0", "1"});
    EXPECT_EQ(applied.exit_code, 0) << applied.out;
    EXPECT_EQ(applied.err, "");
  }
}

TEST_F(MigCommand, ReadsMigPartedsEnvironment) {
  write_file(
      "  c:\n    - {devices: [0], mig-enabled: true, mig-devices: {7g.80gb: 1}}\n"
      "  d:\n    - {devices: [0], mig-enabled: false}\n");
  options_.config_file.clear();
  options_.environment = {{"MIG_PARTED_CONFIG_FILE", file_},
                          {"MIG_PARTED_SELECTED_CONFIG", "c"},
                          {"MIG_PARTED_MODE_CHANGE_ONLY", "true"},
                          {"MIG_PARTED_OUTPUT_FORMAT", "json"},
                          {"MIG_PARTED_CONFIG_LABEL", "label"}};
  EXPECT_EQ(run_mig_command(MigVerb::kPlan, "", {"0"}).out, "GPU 0: enable MIG\n");
  EXPECT_EQ(run_mig_command(MigVerb::kPlan, "d", {"0"}).out, "GPU 0: nothing to do\n")
      << "a flag comes first";
  EXPECT_EQ(Json::parse(run_mig_command(MigVerb::kExport, "").out)["mig-configs"]["label"].size(), 1u);
  options_.environment["MIG_PARTED_VALID_CONFIG"] = "1";
  EXPECT_EQ(run_mig_command(MigVerb::kAssert, "").out, "every GPU supports c\n");
  options_.environment["MIG_PARTED_MODE_CHANGE_ONLY"] = "perhaps";
  const auto refused = run_mig_command(MigVerb::kPlan, "");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.err,
            "gpulet mig plan: MIG_PARTED_MODE_CHANGE_ONLY: expected true or false, found 'perhaps'\n");
}

TEST_F(MigCommand, TheCommandLine) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const std::string kubelet = options_.kubelet_dir;
  EXPECT_EQ(run_main({"apply", "-c", "all-1g.10gb", "--gpu", "0,1", "--dry-run", "--kubelet-dir", kubelet}),
            0);
  EXPECT_EQ(layout_text(0), "MIG disabled");
  EXPECT_EQ(run_main({"apply", "--selected-config=all-1g.10gb", "--gpu", "0", "--gpu", gpu_uuid(1),
                      "--ignore-pods"}),
            0);
  EXPECT_EQ(layout_text(1), "7 \u00d7 1g.10gb");
  EXPECT_EQ(run_main({"assert", "-c", "all-1g.10gb", "--gpu", "0,1", "-o", "json"}), 0);
  EXPECT_EQ(run_main({"assert", "-c", "all-1g.10gb"}), 1);
  EXPECT_EQ(run_main({"assert", "-c", "all-1g.10gb", "-a"}), 0);
  EXPECT_EQ(run_main({"assert", "-c", "all-1g.10gb", "-m", "--gpu=0"}), 0);
  add_process(0, 0);
  EXPECT_EQ(run_main({"plan", "-c", "all-7g.80gb", "--gpu", "0", "--ignore-pods"}), kNeedsAction);
  EXPECT_EQ(run_main({"plan", "-c", "all-7g.80"}), 1);
  EXPECT_EQ(run_main({"plan", "--gpu", "8", "-c", "all-disabled"}), 1);
  EXPECT_EQ(run_main({"plan", "-o", "text", "-c", "all-disabled"}), 2);
  EXPECT_EQ(run_main({"export", "-o", "json", "-l", "x"}), 0);
  EXPECT_EQ(run_main({}), 2);
  EXPECT_NE(
      testing::internal::GetCapturedStderr().find("no GPU '8'; expected an index from 0 to 7 or a UUID"),
      std::string::npos);
  EXPECT_NE(testing::internal::GetCapturedStdout().find("\"x\": ["), std::string::npos);
}

}  // namespace
}  // namespace gpulet::cli
