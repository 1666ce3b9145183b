#include "cli/top/model.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/top/test_top.h"
#include "cli/top/view.h"

namespace gpulet::cli {
namespace {

using testing::Test;

template <class Rows, class Member>
std::vector<std::string> column_texts(const Rows& rows, Member member) {
  std::vector<std::string> all;
  for (const auto& row : rows) all.push_back(row.*member);
  return all;
}
std::vector<std::string> order(const TopModel& model, TopColumn sort, bool descending) {
  return column_texts(model.gpu_rows({sort, descending, {}}), &TopGpu::index);
}
using Texts = std::vector<std::string>;

TEST(TopModel, GpusHaveMetricsAndPods) {
  const auto model = make_top_model();
  const auto gpus = model.gpu_rows(default_query(TopTab::kGpus));
  ASSERT_EQ(gpus.size(), 8u);
  EXPECT_EQ(gpus[3].now.util, 39);
  EXPECT_EQ(gpus[3].now.sm, 33.5);
  EXPECT_EQ(gpus[3].now.power, 340.3);
  EXPECT_EQ(gpus[3].memory_total, 81'559.0 * 1024 * 1024);
  EXPECT_EQ(gpus[7].pods, Texts{"team-b/train-0"});
  EXPECT_EQ(gpus[2].state, "lost");
  EXPECT_EQ(gpus[2].reason, "XID 79: GPU has fallen off the bus");
  EXPECT_FALSE(gpus[2].now.util || gpus[2].now.memory);
  EXPECT_TRUE(gpus[6].mig);
  ASSERT_EQ(gpus[6].slices.size(), 4u);
  EXPECT_EQ(gpus[6].slices[0].index, "6:0");
  EXPECT_EQ(gpus[6].slices[0].name, "3g.40gb @4+4");
  EXPECT_EQ(gpus[6].slices[0].now.util, 55.5);
  EXPECT_EQ(gpus[6].slices[0].pods, Texts{"team-b/notebook"});
  EXPECT_FALSE(gpus[6].slices[1].now.util);
  EXPECT_EQ(model.sampled_at(), kTopAt);
  EXPECT_EQ(model.node_document()->driver, "570.124.06");
}

TEST(TopModel, SortsByEachColumnWithUnknownValuesLast) {
  const auto model = make_top_model();
  EXPECT_EQ(order(model, TopColumn::kGpu, true), (Texts{"7", "6", "5", "4", "3", "2", "1", "0"}));
  // GPUs 2 and 6 report no utilization, GPU 2 nothing at all.
  EXPECT_EQ(order(model, TopColumn::kUtil, true), (Texts{"7", "5", "4", "3", "1", "0", "2", "6"}));
  EXPECT_EQ(order(model, TopColumn::kUtil, false), (Texts{"0", "1", "3", "4", "5", "7", "2", "6"}));
  EXPECT_EQ(order(model, TopColumn::kClock, true), (Texts{"0", "1", "3", "4", "5", "6", "7", "2"}));
  EXPECT_EQ(order(model, TopColumn::kState, false), (Texts{"0", "1", "3", "4", "5", "6", "7", "2"}));
  EXPECT_EQ(order(model, TopColumn::kState, true).front(), "2");
  EXPECT_EQ(order(model, TopColumn::kPcie, true), (Texts{"7", "6", "5", "4", "3", "1", "0", "2"}));
  EXPECT_EQ(order(model, TopColumn::kNvLink, false), (Texts{"0", "1", "3", "4", "5", "6", "7", "2"}));
  // An uncorrected error outweighs corrected ones.
  EXPECT_EQ(order(model, TopColumn::kEcc, true), (Texts{"3", "7", "6", "5", "4", "1", "0", "2"}));
  for (const auto tab : kTopTabs) {
    for (const auto column : sort_columns(tab)) EXPECT_EQ(find_column(tab, column_name(column)), column);
  }
  EXPECT_FALSE(find_column(TopTab::kPods, "power"));
}

TEST(TopModel, FiltersByVisibleText) {
  const auto model = make_top_model();
  const auto shown = [&](const char* filter) {
    return column_texts(model.gpu_rows({TopColumn::kGpu, false, filter}), &TopGpu::index);
  };
  EXPECT_EQ(shown("LOST"), Texts{"2"});
  EXPECT_EQ(shown("fallen off"), Texts{"2"});
  EXPECT_EQ(shown("train-0"), Texts{"7"});
  EXPECT_EQ(shown("h100").size(), 8u);
  EXPECT_EQ(shown("nothing like it"), Texts{});
  // Of a GPU that is not taken, the MIG devices that are.
  const auto gpus = model.gpu_rows({TopColumn::kGpu, false, "3g.40"});
  ASSERT_EQ(gpus.size(), 1u);
  EXPECT_EQ(column_texts(gpus[0].slices, &TopDevice::index), Texts{"6:0"});
  EXPECT_EQ(model.gpu_rows({TopColumn::kGpu, false, "00000006-1111"})[0].slices.size(), 4u);
  EXPECT_EQ(column_texts(model.pod_rows({TopColumn::kPod, false, "LAB"}), &TopPodRow::pod),
            Texts{"team-b/notebook"});
  EXPECT_EQ(column_texts(model.process_rows({TopColumn::kPid, false, "99"}), &TopProcessRow::name),
            Texts{"Xorg"});
}

TEST(TopModel, PodsSumTheirDevices) {
  const auto model = make_top_model();
  const auto pods = model.pod_rows({TopColumn::kUtil, true, {}});
  ASSERT_EQ(pods.size(), 14u);
  EXPECT_EQ(pods[0].pod, "team-b/train-0");
  EXPECT_EQ(pods[0].used.busy, 91);
  EXPECT_EQ(pods[0].devices, "7");
  EXPECT_EQ(pods[0].containers, "main");
  EXPECT_EQ(pods[0].shares, 0u);
  EXPECT_EQ(pods[1].devices, "6:0");
  const auto by_name = model.pod_rows(default_query(TopTab::kPods));
  EXPECT_EQ(by_name[0].pod, "team-a/infer-0");
  EXPECT_EQ(by_name[0].shares, 2u);
  EXPECT_EQ(by_name[0].used.memory, 1'073'741'824);
  // Not reported for each: unknown, not zero.
  const auto infer2 = model.pod_rows({TopColumn::kPod, false, "infer-2"});
  EXPECT_FALSE(infer2[0].used.memory || infer2[0].used.busy);
}

TEST(TopModel, APartlyUnknownSumIsUnknown) {
  TopModel model;
  ASSERT_TRUE(model.apply_node_document(R"({"gpus":[
    {"index":1,"uuid":"a","holders":[{"device":"a","uuid":"a","namespace":"n","pod":"p","container":"c"}]},
    {"index":10,"uuid":"b","holders":[{"device":"b::4","uuid":"b","namespace":"n","pod":"p","container":"d"}]}]})"));
  ASSERT_TRUE(model.apply_usage_document(
      R"({"devices":{"a":{"pods":[{"namespace":"n","pod":"p","memory":5,"busy":60}]},
                                            "b":{"pods":[{"namespace":"n","pod":"p","memory":6}]}}})"));
  const auto pods = model.pod_rows(default_query(TopTab::kPods));
  ASSERT_EQ(pods.size(), 1u);
  EXPECT_EQ(pods[0].devices, "1,10");
  EXPECT_EQ(pods[0].containers, "c,d");
  EXPECT_EQ(pods[0].shares, 1u);
  EXPECT_EQ(pods[0].used.memory, 11);
  EXPECT_FALSE(pods[0].used.busy);
}

TEST(TopModel, ProcessesAreThoseOfTheDevices) {
  const auto model = make_top_model();
  const auto processes = model.process_rows({TopColumn::kMemory, true, {}});
  ASSERT_EQ(processes.size(), 3u);
  EXPECT_EQ(processes[0].name, "pt_main_thread");
  EXPECT_EQ(processes[0].device, "7");
  EXPECT_EQ(processes[0].pod, "team-b/train-0");
  EXPECT_EQ(processes[2].pid, 99u);
  EXPECT_FALSE(processes[2].used.memory);
  EXPECT_EQ(processes[2].pod, "");
}

TEST(TopModel, HistoryHasTheLast15Minutes) {
  auto model = make_top_model();
  std::string samples;
  for (int second = 1200; second > 0; second -= 15) {
    samples += (samples.empty() ? "" : ",") + sample_document_text(kTopAt - second * 1000, 5);
  }
  ASSERT_TRUE(model.apply_history_document("{\"samples\":[" + samples + "]}"));
  const auto& points = model.gpu_history(top_uuid(1));
  ASSERT_EQ(points.size(), 61u);
  EXPECT_EQ(points.front().at, kTopAt - kTopHistoryMs);
  EXPECT_EQ(points.front().util, 18);
  EXPECT_EQ(points.back().at, kTopAt);
  EXPECT_EQ(points.back().util, 13);
  EXPECT_NEAR(*points.back().memory, 12.555, 0.001);
  EXPECT_TRUE(model.gpu_history(top_uuid(2)).empty());
  EXPECT_TRUE(model.gpu_history("no such").empty());
  // A repeated sample changes nothing; a new one displaces the oldest.
  ASSERT_TRUE(model.apply_history_document("{\"samples\":[" + samples + "]}"));
  ASSERT_TRUE(model.apply_sample_document(sample_document_text(kTopAt + 1000)));
  EXPECT_EQ(model.gpu_history(top_uuid(1)).size(), 61u);
  EXPECT_EQ(model.gpu_history(top_uuid(1)).front().at, kTopAt - kTopHistoryMs + 15'000);
  // A clock that was set back restarts the history.
  ASSERT_TRUE(model.apply_sample_document(sample_document_text(kTopAt - 3'600'000)));
  EXPECT_EQ(model.gpu_history(top_uuid(1)).size(), 1u);
}

TEST(TopModel, ARemovedGpuLosesItsHistory) {
  auto model = make_top_model();
  ASSERT_TRUE(model.apply_node_document(R"({"gpus":[]})"));
  EXPECT_TRUE(model.gpu_rows(default_query(TopTab::kGpus)).empty());
  EXPECT_TRUE(model.gpu_history(top_uuid(1)).empty());
  EXPECT_EQ(model.process_rows(default_query(TopTab::kProcesses))[0].device, "");
}

TEST(TopModel, RejectsInvalidDocumentsAndKeepsTheLast) {
  auto model = make_top_model();
  for (const char* bad : {"", "{", "[]", "7", "{}", "{\"gpus\":7}", "{\"gpus\":[1,{}", "\xff", "null"}) {
    EXPECT_FALSE(model.apply_node_document(bad)) << bad;
    EXPECT_FALSE(model.apply_sample_document(bad)) << bad;
    EXPECT_FALSE(model.apply_usage_document(bad)) << bad;
    EXPECT_FALSE(model.apply_history_document(bad)) << bad;
  }
  EXPECT_EQ(model.apply_node_document("{}").error().full_message(),
            "/api/node: not a document of a gpulet agent");
  EXPECT_EQ(model.gpu_rows(default_query(TopTab::kGpus)).size(), 8u);
}

TEST(TopModel, LeavesOutFieldsOfUnexpectedTypes) {
  TopModel model;
  ASSERT_TRUE(model.apply_node_document(
      R"({"name":7,"driver":[],"problems":[1,"two"],"claims":{"moves":[3],"waiting":7},"gpus":[7,null,
    {"index":-1,"uuid":["x"],"model":"a\u001b[2Jb\u00e9","memory":"much","mig":{"devices":[0,{"start":1e300}]},
     "holders":[3,{"uuid":4}]}]})"));
  EXPECT_EQ(model.node_document()->name, "");
  EXPECT_EQ(model.node_document()->problems, Texts{"two"});
  EXPECT_EQ(model.node_document()->claims, Texts{});
  const auto gpus = model.gpu_rows(default_query(TopTab::kGpus));
  ASSERT_EQ(gpus.size(), 1u);
  EXPECT_EQ(gpus[0].index, "0");
  EXPECT_EQ(gpus[0].name, "a?[2Jb??");
  EXPECT_FALSE(gpus[0].memory_total);
  EXPECT_EQ(gpus[0].slices.size(), 1u);
  ASSERT_TRUE(
      model.apply_sample_document(R"({"at":1,"gpus":{"":{"util":"x","power":1e300,"memory":null},"y":3}})"));
  EXPECT_FALSE(model.gpu_rows(default_query(TopTab::kGpus))[0].now.power);
  EXPECT_FALSE(model.apply_sample_document(R"({"at":"now","gpus":{}})"));
}

TEST(TopModel, LeavesOutImpossibleRates) {
  const auto sample = parse_top_sample(
      R"({"at":1,"gpus":{"a":{"pcie_rx":-1,"pcie_tx":1e16,"nvlink_rx":"9","nvlink_tx":5,"nvlink":7,
      "ecc_corrected":-3,"ecc_uncorrected":1e300}}})");
  ASSERT_TRUE(sample);
  const auto& now = sample->gpus.at("a");
  EXPECT_FALSE(now.pcie_rx || now.pcie_tx || now.nvlink_rx || now.ecc_corrected || now.ecc_uncorrected);
  EXPECT_EQ(now.nvlink_tx, 5);
  EXPECT_FALSE(pcie_total(now));
  EXPECT_EQ(nvlink_total(now), 7) << "of GPUs that do not tell the directions apart";
}

TEST(TopModel, RendersJson) {
  const auto model = make_top_model();
  TopView view;
  view.queries[TopTab::kPods] = {TopColumn::kUtil, true, "train"};
  const auto json = nlohmann::json::parse(render_top_json(model, view));
  EXPECT_EQ(json["at"], kTopAt);
  EXPECT_EQ(json["node"], "gpu-node-1");
  ASSERT_EQ(json["gpus"].size(), 8u);
  EXPECT_EQ(json["gpus"][3]["util"], 39);
  EXPECT_EQ(json["gpus"][3]["power"], 340.3);
  EXPECT_EQ(json["gpus"][3]["nvlink_rx"], 99'000'000'000);
  EXPECT_EQ(json["gpus"][3]["pcie_tx"], 75'000'000);
  EXPECT_EQ(json["gpus"][3]["ecc_uncorrected"], 2);
  EXPECT_FALSE(json["gpus"][2].contains("util"));
  EXPECT_EQ(json["gpus"][2]["state"], "lost");
  EXPECT_EQ(json["gpus"][6]["slices"][0]["memory"], 21'474'836'480);
  EXPECT_EQ(json["pods"],
            nlohmann::json::parse(R"([{"pod":"team-b/train-0","containers":"main","gpus":"7","shares":0,
                                                     "busy":91,"memory":75161927680}])"));
  EXPECT_EQ(json["processes"][0]["pid"], 4711);
  EXPECT_EQ(nlohmann::json::parse(render_top_json({}, view)),
            nlohmann::json::parse(R"({"gpus":[],"pods":[],"processes":[]})"));
}

}  // namespace
}  // namespace gpulet::cli
