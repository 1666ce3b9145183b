#include "metrics_api/agent_scraper.h"

#include <gtest/gtest.h>

namespace gpulet::metrics_api {
namespace {

AgentPage parse_page(const std::string& text, std::size_t piece = 7) {
  AgentPageParser reader;
  for (std::size_t at = 0; at < text.size(); at += piece) {
    const auto taken = reader.parse_chunk(std::string_view(text).substr(at, piece));
    EXPECT_TRUE(taken) << taken.error().full_message();
  }
  return reader.finish_page();
}

std::string series(const std::string& name, const std::string& labels, const std::string& value) {
  return name + "{" + labels + "} " + value + "\n";
}
const std::string kGpu0 = R"(gpu="0",UUID="GPU-0",modelName="NVIDIA H100")";
const std::string kGpu1 = R"(gpu="1",UUID="GPU-1",modelName="NVIDIA H100")";
const std::string kA = R"(,container="main",namespace="models",pod="a")";
const std::string kB = R"(,container="main",namespace="models",pod="b")";
const PodName kPodA{"models", "a"}, kPodB{"models", "b"};

PodMetrics values(double utilization, double memory, double percent, double power) {
  return {{Metric::kUtilization, utilization},
          {Metric::kMemoryUsed, memory},
          {Metric::kMemoryUtilization, percent},
          {Metric::kPower, power}};
}

TEST(AgentPage, AveragesUtilizationAndSumsMemory) {
  const std::string page =
      "# HELP DCGM_FI_DEV_GPU_UTIL x\n# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n" +
      series("DCGM_FI_DEV_GPU_UTIL", kGpu0 + kA, "80") +
      series("DCGM_FI_DEV_GPU_UTIL", kGpu1 + kA, "35 1700000000000") +
      series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", kGpu0 + kA, "0.5") +
      series("DCGM_FI_DEV_FB_USED", kGpu0 + kA, "10240") + series("DCGM_FI_DEV_FB_USED", kGpu1 + kA, "0") +
      series("DCGM_FI_DEV_FB_FREE", kGpu0 + kA, "10240") +
      series("DCGM_FI_DEV_FB_FREE", kGpu1 + kA, "20480") +
      series("DCGM_FI_DEV_POWER_USAGE", kGpu0 + kA, "300.5") +
      series("DCGM_FI_DEV_POWER_USAGE", kGpu1 + kA, "100") + "gpulet_sample_age_seconds 1.5";
  for (const std::size_t piece : {1u, 7u, 4096u}) {
    const auto parsed = parse_page(page, piece);
    EXPECT_EQ(parsed.pods,
              (std::map<PodName, PodMetrics>{{kPodA, values(57.5, 10240.0 * 1048576, 25, 400.5)}}));
    EXPECT_EQ(parsed.sample_age_s, 1.5);
  }
}

TEST(AgentPage, DividesASharedGpuByPod) {
  const auto parsed = parse_page(
      series("DCGM_FI_DEV_GPU_UTIL", kGpu0 + kA, "30") + series("DCGM_FI_DEV_GPU_UTIL", kGpu0 + kB, "0") +
      series("DCGM_FI_DEV_GPU_UTIL", kGpu0, "5") + series("DCGM_FI_DEV_FB_USED", kGpu0 + kA, "2048") +
      series("DCGM_FI_DEV_FB_USED", kGpu0 + kB, "1024") + series("DCGM_FI_DEV_FB_USED", kGpu0, "1024") +
      series("DCGM_FI_DEV_FB_FREE", kGpu0, "4096") + series("DCGM_FI_DEV_POWER_USAGE", kGpu0, "300") +
      series("gpulet_pod_gpu_memory_bytes", kGpu0 + R"(,namespace="models",pod="a")", "2147483600") +
      series("gpulet_pod_gpu_memory_bytes", kGpu0 + R"(,namespace="models",pod="b")", "1073741824") +
      series("gpulet_pod_gpu_memory_bytes", kGpu0 + R"(,namespace="",pod="")", "99"));
  EXPECT_EQ(parsed.pods.size(), 2u);
  EXPECT_EQ(parsed.pods.at(kPodA).at(Metric::kUtilization), 30);
  EXPECT_EQ(parsed.pods.at(kPodB).at(Metric::kUtilization), 0);
  EXPECT_EQ(parsed.pods.at(kPodA).at(Metric::kMemoryUsed), 2147483600);
  EXPECT_EQ(parsed.pods.at(kPodB).at(Metric::kMemoryUtilization), 12.5);
  EXPECT_FALSE(parsed.pods.at(kPodA).contains(Metric::kPower));
}

TEST(AgentPage, UsesEngineActivityOfMigInstances) {
  const std::string part = kGpu0 + R"(,GPU_I_PROFILE="1g.10gb",GPU_I_ID="9")";
  const std::string other = kGpu0 + R"(,GPU_I_PROFILE="1g.10gb",GPU_I_ID="11")";
  const auto parsed = parse_page(
      series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", part + kA, "0.25") +
      series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", other + kA, "0.75") +
      series("DCGM_FI_DEV_POWER_USAGE", part + kA, "300") +
      series("gpulet_pod_gpu_memory_bytes", part + R"(,GPU_C_ID="0",namespace="models",pod="a")", "100") +
      series("gpulet_pod_gpu_memory_bytes", part + R"(,GPU_C_ID="1",namespace="models",pod="a")", "50"));
  EXPECT_EQ(parsed.pods.at(kPodA), (PodMetrics{{Metric::kUtilization, 50}, {Metric::kMemoryUsed, 150}}));
}

TEST(AgentPage, AcceptsOldLabelNamesAndEscapes) {
  const auto parsed = parse_page(
      "DCGM_FI_DEV_GPU_UTIL { modelName=\"a \\\"b\\\" \\\\ } \\n\" , "
      "uuid=\"GPU-0\",pod_name=\"a\",pod_namespace="
      "\"models\",} 12\r\n");
  // A carriage return is not part of a number.
  EXPECT_TRUE(parsed.pods.empty());
  const auto good = parse_page(
      "DCGM_FI_DEV_GPU_UTIL{modelName=\"a \\\"b\\\" \\\\ } \\n\", "
      "uuid=\"GPU-0\",pod_name=\"a\",pod_namespace="
      "\"models\",} 12\n");
  EXPECT_EQ(good.pods, (std::map<PodName, PodMetrics>{{kPodA, {{Metric::kUtilization, 12}}}}));
}

TEST(AgentPage, SkipsInvalidLines) {
  for (const std::string& line : std::vector<std::string>{
           "DCGM_FI_DEV_GPU_UTIL{" + kGpu0 + kA + "} NaN\n",
           "DCGM_FI_DEV_GPU_UTIL{" + kGpu0 + kA + "} +Inf\n", "DCGM_FI_DEV_GPU_UTIL{" + kGpu0 + kA + "} -1\n",
           "DCGM_FI_DEV_GPU_UTIL{" + kGpu0 + kA + "} 1x\n", "DCGM_FI_DEV_GPU_UTIL{" + kGpu0 + kA + "}\n",
           "DCGM_FI_DEV_GPU_UTIL{" + kGpu0 + kA + "\n", std::string("DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-0\n"),
           std::string("DCGM_FI_DEV_GPU_UTIL{UUID\n"),
           std::string("DCGM_FI_DEV_GPU_UTIL{pod=\"a\",namespace=\"models\"} 5\n"),
           std::string("DCGM_FI_DEV_GPU_UTIL 5\n"), std::string("{\n"), std::string("\n\n")}) {
    EXPECT_TRUE(parse_page(line).pods.empty()) << line;
  }
}

TEST(AgentPage, EnforcesLimits) {
  AgentPageParser long_line;
  EXPECT_FALSE(long_line.parse_chunk(std::string(kMaxLineBytes + 1, 'x')));
  AgentPageParser grown;
  EXPECT_TRUE(grown.parse_chunk(std::string(kMaxLineBytes, 'x')));
  EXPECT_FALSE(grown.parse_chunk("x"));
  AgentPageParser large;
  const std::string lines(1u << 20, '\n');
  for (std::size_t i = 0; i < kMaxPageBytes >> 20; ++i) ASSERT_TRUE(large.parse_chunk(lines));
  EXPECT_FALSE(large.parse_chunk("\n"));
  AgentPageParser many;
  Status taken;
  for (std::size_t i = 0; i <= kMaxPodsPerPage && taken; ++i) {
    taken = many.parse_chunk(
        series("DCGM_FI_DEV_GPU_UTIL", kGpu0 + ",namespace=\"n\",pod=\"p" + std::to_string(i) + "\"", "1"));
    EXPECT_EQ(taken.has_value(), i < kMaxPodsPerPage);
  }
}

}  // namespace
}  // namespace gpulet::metrics_api
