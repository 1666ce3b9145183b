#include "preflight/preflight_report.h"

#include <gtest/gtest.h>

#include <bit>

#include "preflight/kernel.h"
#include "preflight/model_figures.h"

namespace gpulet::preflight {
namespace {

using Kind = Verdict::Kind;

Report full_report() {
  return {.gpu = "GPU-1",
          .model = "NVIDIA H100 80GB HBM3",
          .checks = {{.check = Check::kMemory, .outcome = Outcome::kPassed, .message = "4096 MiB"},
                     {.check = Check::kPeerCopy,
                      .outcome = Outcome::kSlow,
                      .message = "9.0 GB/s",
                      .bytes_per_second = 9'000'000'000,
                      .expected_bytes_per_second = 330'000'000'000,
                      .peer = "GPU-2"}}};
}

Verdict judge(const Report& report) {
  return judge_run({.ended = RunResult::Ended::kReported, .output = format_report(report)}, "GPU-1", false);
}

TEST(PreflightReport, ReadsBackWhatIsWritten) {
  const auto read = parse_report(format_report(full_report()));
  ASSERT_TRUE(read) << read.error().full_message();
  EXPECT_EQ(*read, full_report());
}

TEST(PreflightReport, RefusesOtherTexts) {
  std::string many = R"({"gpu":"GPU-1","checks":[)";
  for (std::size_t i = 0; i <= kMaxReportChecks; ++i)
    many += std::string(i == 0 ? "" : ",") + R"({"check":"memory","outcome":"passed"})";
  const std::pair<std::string, const char*> rows[] = {
      {"", "no JSON object"},
      {"[]", "no JSON object"},
      {"{}", "checks is not an array"},
      {R"({"gpu":1,"checks":[]})", "gpu is not a string"},
      {R"({"checks":[1]})", "checks[0] is not an object"},
      {R"({"checks":[{"check":"x","outcome":"passed"}]})", "checks[0].check is not the name of a check"},
      {R"({"checks":[{"check":"memory","outcome":"fine"}]})", "checks[0].outcome is not"},
      {R"({"checks":[{"check":"memory","outcome":"passed","bytesPerSecond":-1}]})",
       "checks[0].bytesPerSecond is not a number"},
      {many + "]}", "at most 64 results"},
      {R"({"gpu":")" + std::string(kMaxReportText + 1, 'a') + R"(","checks":[]})", "at most 512 bytes"},
      {std::string(kMaxReportBytes + 1, ' '), "longer than"},
      {std::string(100, '[') + std::string(100, ']'), "no JSON object"},
  };
  for (const auto& [text, why] : rows) {
    const auto read = parse_report(text);
    ASSERT_FALSE(read) << text;
    EXPECT_NE(read.error().full_message().find(why), std::string::npos) << read.error().full_message();
    EXPECT_EQ(judge_run({.ended = RunResult::Ended::kReported, .output = text}, "GPU-1", true).kind,
              Kind::kUnknown)
        << "a broken program says nothing about the GPU";
  }
  EXPECT_EQ(parse_report(R"({"gpu":"a\u001b[1m","checks":[]})")->gpu, "a?[1m");
}

TEST(PreflightReport, OnlyEvidenceOfAFaultFails) {
  auto report = full_report();
  EXPECT_EQ(judge(report).kind, Kind::kSlow);
  EXPECT_EQ(judge(report).text, "peer-copy with GPU-2: 9.0 GB/s");
  report.checks[1].outcome = Outcome::kNotRun;
  EXPECT_EQ(judge(report).kind, Kind::kPassed);
  EXPECT_NE(judge(report).text.find("peer-copy"), std::string::npos) << "what did not run is said";
  report.checks[0].outcome = Outcome::kNotRun;
  EXPECT_EQ(judge(report).kind, Kind::kUnknown);
  report.checks[1].outcome = Outcome::kSlow;
  report.checks[0].outcome = Outcome::kFailed;
  EXPECT_EQ(judge(report).kind, Kind::kFailed) << "worse than slow";
  EXPECT_EQ(judge(report).text, "memory: 4096 MiB");
  report.gpu = "GPU-2";
  EXPECT_EQ(judge(report).kind, Kind::kUnknown);
  EXPECT_EQ(judge({.gpu = "GPU-1"}).kind, Kind::kUnknown);
}

TEST(PreflightReport, AHangCountsTheSecondTime) {
  const RunResult hung{.ended = RunResult::Ended::kTimedOut, .error = "no end within 30 s"};
  EXPECT_EQ(judge_run(hung, "GPU-1", false).kind, Kind::kRunAgain);
  EXPECT_EQ(judge_run(hung, "GPU-1", true).kind, Kind::kFailed);
  for (const auto ended : {RunResult::Ended::kCrashed, RunResult::Ended::kNotStarted})
    EXPECT_EQ(judge_run({.ended = ended, .error = "signal 11"}, "GPU-1", true).kind, Kind::kUnknown);
}

TEST(PreflightReport, CopiesWithAPeerSayNothingOfTheGpuAlone) {
  auto report = full_report();
  ASSERT_TRUE(has_peer_fault(judge(report)));
  auto own = judge_own_checks(judge(report));
  EXPECT_EQ(own.kind, Kind::kPassed);
  EXPECT_EQ(own.text, "peer-copy with GPU-2: the fault of one of the two: 9.0 GB/s");
  EXPECT_FALSE(has_peer_fault(own));
  report.checks[0].outcome = Outcome::kFailed;
  EXPECT_EQ(judge_own_checks(judge(report)).kind, Kind::kFailed);
  EXPECT_FALSE(has_peer_fault({}));
}

TEST(PreflightReport, FiguresAreOfTheModel) {
  EXPECT_EQ(figures_of("NVIDIA H100 80GB HBM3").host_bytes_per_second, 45'000'000'000u);
  EXPECT_TRUE(figures_of("NVIDIA H100 80GB HBM3").peer_bytes_per_second);
  EXPECT_FALSE(figures_of("NVIDIA H100 PCIe").peer_bytes_per_second);
  EXPECT_FALSE(figures_of("NVIDIA GB200").host_bytes_per_second);
  EXPECT_FALSE(figures_of("NVIDIA Z9").host_bytes_per_second);
  EXPECT_TRUE(is_slow(22, 45));
  EXPECT_FALSE(is_slow(23, 45));
}

// Computed by hand from the formula in kernel.h.
TEST(PreflightKernel, TheHostComputesItsFormula) {
  EXPECT_EQ(kernel_result(0, 0), 1u ^ 0x3F800000u);
  const std::uint32_t x = (1u * 1664525u + 1013904223u) ^ ((1u * 1664525u + 1013904223u) >> 13);
  const float f = 0.5F + static_cast<float>(x >> 8) / 16777216.0F;
  EXPECT_EQ(kernel_result(0, 1), x ^ std::bit_cast<std::uint32_t>(f));
}

}  // namespace
}  // namespace gpulet::preflight
