// A page of metrics, built from values and written in Prometheus' text format 0.0.4 or as OpenMetrics: HELP
// and TYPE once a family, families by name and samples by labels, so that the same values give the same
// bytes.
//
// OpenMetrics wants the name of every counter to end in "_total". DCGM's do not, and a metric must not be
// called otherwise than in the text format: there they are of type "unknown". Source:
// https://prometheus.io/docs/instrumenting/exposition_formats/, the OpenMetrics specification 1.0.
#pragma once

#include <concepts>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace gpulet::metrics {

class Exposition {
 public:
  enum class Type { kCounter, kGauge };
  using Label = std::pair<std::string_view, std::string_view>;

  // Labels as a page has them: "{gpu="0",UUID="GPU-…"}", in their order; empty for none. Values are any text;
  // what is not UTF-8 in them is replaced, as a reader would refuse the whole page. Names:
  // [a-zA-Z_][a-zA-Z0-9_]*.
  class Labels {
   public:
    Labels() = default;
    Labels(std::initializer_list<Label> labels) : Labels(std::span(labels.begin(), labels.size())) {}
    explicit Labels(std::span<const Label> labels);
    const std::string& text() const { return text_; }

   private:
    std::string text_;
  };

  // A sample of the family `name` ("gpulet_events_total"; [a-zA-Z_:][a-zA-Z0-9_:]*). The type and help of a
  // family's first sample stand; the last value of equal labels.
  template <std::integral Number>
  void add(std::string_view name, Type type, std::string_view help, const Labels& labels, Number value) {
    add_text(name, type, help, labels, std::to_string(value));
  }
  void add(std::string_view name, Type type, std::string_view help, const Labels& labels, double value);

  std::string text() const;
  std::string open_metrics() const;

 private:
  struct Family {
    Type type;
    std::string help;
    std::map<std::string, std::string> samples;  // labels with their braces → value
  };
  void add_text(std::string_view name, Type type, std::string_view help, const Labels& labels,
                std::string value);

  std::map<std::string, Family, std::less<>> families_;
};

}  // namespace gpulet::metrics
