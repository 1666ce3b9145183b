// Collects metrics and writes them in Prometheus' text format 0.0.4 or as OpenMetrics: HELP and TYPE once per
// family, families by name and samples by labels, so that equal values give equal bytes.
//
// In OpenMetrics, counters end in "_total". DCGM's do not, and a metric must have one name in both formats,
// so they have type "unknown" there. Source: https://prometheus.io/docs/instrumenting/exposition_formats/,
// the OpenMetrics specification 1.0.
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace gpulet::metrics {

class Exposition {
 public:
  enum class Type { kCounter, kGauge, kHistogram };
  static std::string_view type_name(Type type);  // "counter", as in a line # TYPE
  using Label = std::pair<std::string_view, std::string_view>;

  // Labels as text, in their order: "{gpu="0",UUID="GPU-…"}"; empty: none. Invalid UTF-8 in values is
  // replaced, because a reader would reject the whole page. Names: [a-zA-Z_][a-zA-Z0-9_]*.
  class Labels {
   public:
    Labels() = default;
    Labels(std::initializer_list<Label> labels) : Labels(std::span(labels.begin(), labels.size())) {}
    explicit Labels(std::span<const Label> labels);
    const std::string& label_text() const { return text_; }

   private:
    std::string text_;
  };

  // A sample of the family `name` ("gpulet_events_total"; [a-zA-Z_:][a-zA-Z0-9_:]*). The type and help of the
  // family's first sample and the last value of equal labels count.
  template <std::integral Number>
  void add_sample(std::string_view name, Type type, std::string_view help, const Labels& labels,
                  Number value) {
    add_sample_text(name, type, help, labels, std::to_string(value));
  }
  void add_sample(std::string_view name, Type type, std::string_view help, const Labels& labels,
                  double value);

  // Observed values: `counts` has the number in each bucket, up to and including the bound of the same index
  // and more than the bound before; the last one, for which there is no bound, has the rest. Precondition:
  // one count more than bounds, which ascend.
  struct Histogram {
    std::span<const double> bounds;
    std::span<const std::uint64_t> counts;
    double sum = 0;
  };
  // The family has only histograms.
  void add_histogram(std::string_view name, std::string_view help, const Labels& labels,
                     const Histogram& histogram);

  std::string text_format() const;
  std::string open_metrics_format() const;

 private:
  struct Family {
    Type type;
    std::string help;
    // Labels with braces → value; of a histogram, all of its lines.
    std::map<std::string, std::string> samples;
  };
  static void append_samples(std::string& page, std::string_view name, const Family& family);
  void add_sample_text(std::string_view name, Type type, std::string_view help, const Labels& labels,
                       std::string value);

  std::map<std::string, Family, std::less<>> families_;
};

}  // namespace gpulet::metrics
