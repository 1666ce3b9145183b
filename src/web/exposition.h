// A page of metrics in Prometheus' text format 0.0.4, built from values; HELP and TYPE once a family,
// families by name and samples by labels, so that the same values give the same bytes.
// Source: https://prometheus.io/docs/instrumenting/exposition_formats/
#pragma once

#include <concepts>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace gpulet::web {

class Exposition {
 public:
  enum class Type { kCounter, kGauge };
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  // A sample of the family `name` ("gpulet_events_total", counters end in _total; [a-zA-Z_:][a-zA-Z0-9_:]*).
  // Label values are any text; their order is kept. The type and help of a family's first sample stand; the
  // last value of equal labels.
  template <std::integral Number>
  void add(std::string_view name, Type type, std::string_view help, Labels labels, Number value) {
    add_text(name, type, help, labels, std::to_string(value));
  }
  void add(std::string_view name, Type type, std::string_view help, Labels labels, double value);

  std::string text() const;

 private:
  struct Family {
    Type type;
    std::string help;
    std::map<std::string, std::string> samples;  // labels with their braces → value
  };
  void add_text(std::string_view name, Type type, std::string_view help, Labels labels, std::string value);

  std::map<std::string, Family, std::less<>> families_;
};

}  // namespace gpulet::web
