#include "sim/schedule/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpulet::scheduler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kNodes =
    "sn,cpu_milli,memory_mib,gpu,model\n"
    "a,64000,262144,2,P100\n"
    "b,96000,393216,8,G2\n";
constexpr const char* kPods =
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n"
    "x,12000,16384,1,460,,LS\n"
    "y,4000,8192,4,1000,G2|P100,BE\n"
    "z,4000,8192,0,0,,BE\n";

std::string read_error(const std::string& nodes, const std::string& pods) {
  const auto trace = read_trace(nodes, "nodes.csv", pods, "pods.csv");
  EXPECT_FALSE(trace);
  return trace ? "" : trace.error().full_message();
}

TEST(TraceReader, ReadsNodesAndTasks) {
  const auto trace = read_trace(kNodes, "nodes.csv", kPods, "pods.csv");
  ASSERT_TRUE(trace) << trace.error().full_message();
  EXPECT_EQ(trace->total_gpu_milli(), 10'000);
  ASSERT_EQ(trace->nodes.size(), 2u);
  EXPECT_EQ(trace->nodes[1].cpu_milli, 96000);
  EXPECT_EQ(trace->nodes[1].memory_mib, 393216);
  EXPECT_EQ(trace->nodes[1].gpus_with_free(kWhole), 0xffu);
  ASSERT_EQ(trace->tasks.size(), 3u);
  EXPECT_TRUE(trace->tasks[0].is_shared());
  EXPECT_EQ(trace->tasks[0].gpu_milli, 460);
  EXPECT_EQ(trace->tasks[1].gpus, 4);
  EXPECT_TRUE(trace->tasks[1].models.accepts(trace->nodes[1].model));
  EXPECT_EQ(trace->tasks[2].total_milli(), 0);
}

TEST(TraceReader, AcceptsAnyColumnOrderQuotesAndDosLines) {
  const auto trace = read_trace("model,gpu,memory_mib,cpu_milli\r\n\"H100, SXM\",8,1,2\r\n\r\n", "nodes.csv",
                                "gpu_milli,num_gpu,memory_mib,cpu_milli\n1000,1,3,4", "pods.csv");
  ASSERT_TRUE(trace) << trace.error().full_message();
  EXPECT_THAT(trace->models.model_names(), ElementsAre("H100, SXM"));
  EXPECT_EQ(trace->nodes[0].cpu_milli, 2);
  EXPECT_EQ(trace->tasks[0].cpu_milli, 4);
}

TEST(TraceReader, ErrorsNameFileRowAndField) {
  const std::string header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n";
  EXPECT_EQ(read_error(kNodes, header + "x,1,1,1,1000,\ny,1,1,1,1001,\n"),
            "pods.csv: row 3, gpu_milli: found '1001', expected a whole number from 0 to 1000");
  EXPECT_EQ(read_error(kNodes, header + "x,-1,1,1,1000,\n"),
            "pods.csv: row 2, cpu_milli: found '-1', expected a whole number from 0 to 10000000");
  EXPECT_EQ(read_error(kNodes, header + "x,1,1,17,1000,\n"),
            "pods.csv: row 2, num_gpu: found '17', expected a whole number from 0 to 16");
  EXPECT_EQ(
      read_error(kNodes, header + "x,1,1,2,0,\n"),
      "pods.csv: row 2, gpu_milli: found '0' for a task with 2 GPUs, expected 1 to 1000 thousandths of each");
  EXPECT_EQ(read_error(kNodes, header + "x,1,1,1,1000\n"), "pods.csv: row 2: 5 fields, the header has 6");
  EXPECT_THAT(read_error(kNodes, header + "x,1,1,1,1000,A||B\n"),
              HasSubstr("pods.csv: row 2, gpu_spec: 'A||B' contains an empty"));
  EXPECT_EQ(read_error(kNodes, header + "x,1,1,1,\"1000,\n"),
            "pods.csv: row 2: a double quote without its end");
}

TEST(TraceReader, RejectsInvalidTraces) {
  EXPECT_EQ(read_error("", kPods),
            "nodes.csv: it has nothing in it; a header and at least one row are needed");
  EXPECT_EQ(read_error(kNodes, "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"),
            "pods.csv: it has a header only; a header and at least one row are needed");
  EXPECT_EQ(
      read_error(kNodes, "name,cpu_milli,memory,num_gpu,gpu_milli\nx,1,1,1,1\n"),
      "pods.csv: no column 'memory_mib' in the header; found name, cpu_milli, memory, num_gpu, gpu_milli");
  EXPECT_EQ(read_error("cpu_milli,memory_mib,gpu,model\n1,1,0,CPU\n", kPods), "nodes.csv: no node has a GPU");
  std::string many = "cpu_milli,memory_mib,gpu,model\n";
  for (int at = 0; at < 65; ++at) many += "1,1,1,M" + std::to_string(at) + "\n";
  EXPECT_THAT(read_error(many, kPods),
              HasSubstr("nodes.csv: row 66, model: model 'M64' exceeds the limit of 64"));
}

}  // namespace
}  // namespace gpulet::scheduler
