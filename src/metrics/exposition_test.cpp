#include "metrics/exposition.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "metrics/test_promtool.h"

namespace gpulet::metrics {
namespace {

using enum Exposition::Type;

TEST(Exposition, FamilyHasOneHelpAndAStableOrder) {
  Exposition page;
  page.add_sample("gpulet_events_total", kCounter, "Events by reason.", {{"reason", "GPUUnhealthy"}}, 3u);
  page.add_sample("gpulet_devices", kGauge, "Devices offered.", {}, 8);
  page.add_sample("gpulet_events_total", kCounter, "Events by reason.", {{"reason", "GPUHealthy"}},
                  std::uint64_t{1} << 63);
  page.add_sample("gpulet_devices", kGauge, "Devices offered.", {}, 7);
  EXPECT_EQ(page.text_format(),
            "# HELP gpulet_devices Devices offered.\n"
            "# TYPE gpulet_devices gauge\n"
            "gpulet_devices 7\n"
            "# HELP gpulet_events_total Events by reason.\n"
            "# TYPE gpulet_events_total counter\n"
            "gpulet_events_total{reason=\"GPUHealthy\"} 9223372036854775808\n"
            "gpulet_events_total{reason=\"GPUUnhealthy\"} 3\n");
}

TEST(Exposition, PrometheusReadsEveryValueAndLabel) {
  Exposition page;
  page.add_sample("gpulet_values", kGauge, "A \\ and a\nline \"break\".", {{"kind", "nan"}}, std::nan(""));
  page.add_sample("gpulet_values", kGauge, "", {{"kind", "inf"}}, std::numeric_limits<double>::infinity());
  page.add_sample("gpulet_values", kGauge, "", {{"kind", "-inf"}}, -std::numeric_limits<double>::infinity());
  page.add_sample("gpulet_values", kGauge, "", {{"kind", "tiny"}}, 1e-300);
  page.add_sample("gpulet_values", kGauge, "", {{"kind", "tenth"}}, 0.1);
  page.add_sample("gpulet_values", kGauge, "", {{"kind", "\"quoted\\\n\" ünïcode, } ="}, {"other", ""}}, -5);
  EXPECT_NE(page.text_format().find("gpulet_values{kind=\"tenth\"} 0.1\n"), std::string::npos);
  EXPECT_NE(page.text_format().find("kind=\"\\\"quoted\\\\\\n\\\" "), std::string::npos);
  EXPECT_EQ(promtool(page.text_format()), "");
}

TEST(Exposition, LinterFindsErrors) { EXPECT_NE(promtool("gpulet_x{a=\"b} 1\n"), ""); }

TEST(Exposition, HistogramsCountUpwards) {
  Exposition page;
  const double bounds[] = {0.05, 1.6, 12.8};
  const std::uint64_t counts[] = {2, 0, 3, 1};
  page.add_histogram("gpulet_request_seconds", "Time.", {{"call", "b"}}, {bounds, counts, 30.5});
  page.add_histogram("gpulet_request_seconds", "Time.", {{"call", "a"}}, {bounds, counts, 30.5});
  const auto lines_of = [](const std::string& call) {
    const std::string labels = "{call=\"" + call + "\"";
    return "gpulet_request_seconds_bucket" + labels + ",le=\"0.05\"} 2\n" +  //
           "gpulet_request_seconds_bucket" + labels + ",le=\"1.6\"} 2\n" +   //
           "gpulet_request_seconds_bucket" + labels + ",le=\"12.8\"} 5\n" +  //
           "gpulet_request_seconds_bucket" + labels + ",le=\"+Inf\"} 6\n" +  //
           "gpulet_request_seconds_sum" + labels + "} 30.5\ngpulet_request_seconds_count" + labels + "} 6\n";
  };
  const std::string expected =
      "# HELP gpulet_request_seconds Time.\n# TYPE gpulet_request_seconds histogram\n" + lines_of("a") +
      lines_of("b");
  EXPECT_EQ(page.text_format(), expected);
  EXPECT_EQ(page.open_metrics_format(), expected + "# EOF\n");
  page.add_histogram("gpulet_all_seconds", "Time.", {}, {bounds, counts, 30.5});
  EXPECT_NE(page.text_format().find("gpulet_all_seconds_bucket{le=\"0.05\"} 2\n"), std::string::npos);
  EXPECT_EQ(promtool(page.text_format()), "");
}

TEST(Exposition, InvalidUtf8IsReplaced) {
  Exposition page;
  // A byte alone, a surrogate half, an overlong slash, a truncated character; then valid text.
  page.add_sample("gpulet_values", kGauge, "Values.",
                  {{"a", "\xff|\xed\xa0\x80|\xc0\xaf|\xe2\x82"}, {"b", "\xe2\x82\xac"}}, 1);
  const std::string_view bad = "\xEF\xBF\xBD";
  const auto times = [&](int n) {
    std::string text;
    for (; n > 0; --n) text += bad;
    return text;
  };
  EXPECT_NE(page.text_format().find("a=\"" + times(1) + "|" + times(3) + "|" + times(2) + "|" + times(2) +
                                    "\",b=\"\xe2\x82\xac\""),
            std::string::npos)
      << page.text_format();
  EXPECT_EQ(promtool(page.text_format()), "");
}

TEST(Exposition, OpenMetricsKeepsTheNames) {
  Exposition page;
  page.add_sample("gpulet_events_total", kCounter, "Events \"by\" reason.", {{"reason", "a\nb"}}, 3);
  page.add_sample("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", kCounter, "mJ", {{"gpu", "0"}}, 5);
  page.add_sample("gpulet_devices", kGauge, "Devices.", {}, 7.5);
  EXPECT_EQ(page.open_metrics_format(),
            "# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION mJ\n"
            "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION unknown\n"
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu=\"0\"} 5\n"
            "# HELP gpulet_devices Devices.\n"
            "# TYPE gpulet_devices gauge\n"
            "gpulet_devices 7.5\n"
            "# HELP gpulet_events Events \\\"by\\\" reason.\n"
            "# TYPE gpulet_events counter\n"
            "gpulet_events_total{reason=\"a\\nb\"} 3\n"
            "# EOF\n");
  EXPECT_EQ(Exposition().open_metrics_format(), "# EOF\n");
}

}  // namespace
}  // namespace gpulet::metrics
