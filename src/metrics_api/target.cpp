#include "metrics_api/target.h"

#include <algorithm>
#include <map>

#include "base/text.h"
#include "cluster/objects.h"

namespace gpulet::metrics_api {
namespace {

std::optional<unsigned> hex_digit(char c) {
  if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<unsigned>(c - 'A' + 10);
  return std::nullopt;
}

// The first of a name counts.
Result<std::map<std::string, std::string>> query_of(std::string_view target) {
  std::map<std::string, std::string> query;
  const auto question = target.find('?');
  if (question == std::string_view::npos) return query;
  for (const auto& pair : text::split(target.substr(question + 1), '&')) {
    const auto equals = std::min(pair.find('='), pair.size());
    auto name = unescaped(std::string_view(pair).substr(0, equals), true);
    auto value = unescaped(std::string_view(pair).substr(std::min(equals + 1, pair.size())), true);
    if (!name || !value) return fail(Code::kInvalidArgument, "the query has an escape that is none");
    query.try_emplace(std::move(*name), std::move(*value));
  }
  return query;
}

bool is_version(std::string_view text) { return std::ranges::find(kVersions, text) != std::end(kVersions); }

Result<Target> pod_metric(const std::vector<std::string>& parts, std::string_view target) {
  PodMetric asked{
      .version = parts[2], .name_space = parts[4], .pod = parts[6], .metric = parts[7], .selector = {}};
  if (!cluster::is_name(asked.name_space)) {
    return fail(Code::kInvalidArgument, "that is no name of a namespace");
  }
  if (!asked.all() && !cluster::is_name(asked.pod)) {
    return fail(Code::kInvalidArgument, "that is no name of a Pod");
  }
  GPULET_TRY_ASSIGN(auto query, query_of(target));
  if (!query["metricLabelSelector"].empty()) {
    return fail(Code::kInvalidArgument,
                "these metrics have no labels to select by: leave metricLabelSelector out");
  }
  if (!query["fieldSelector"].empty()) {
    return fail(Code::kInvalidArgument, "Pods are selected by labels only: leave fieldSelector out");
  }
  if (const auto& watch = query["watch"]; !watch.empty() && watch != "false" && watch != "0") {
    return fail(Code::kInvalidArgument, "these metrics cannot be watched");
  }
  asked.selector = std::move(query["labelSelector"]);
  return asked;
}

}  // namespace

std::optional<std::string> unescaped(std::string_view text, bool query) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain += query && text[i] == '+' ? ' ' : text[i];
      continue;
    }
    const auto high = i + 2 < text.size() ? hex_digit(text[i + 1]) : std::nullopt;
    const auto low = i + 2 < text.size() ? hex_digit(text[i + 2]) : std::nullopt;
    if (!high || !low) return std::nullopt;
    plain += static_cast<char>(*high << 4 | *low);
    i += 2;
  }
  return plain;
}

std::string_view path_of(std::string_view target) { return target.substr(0, target.find('?')); }

Result<Target> parse_target(std::string_view target) {
  std::string_view path = path_of(target);
  if (path == "/healthz" || path == "/livez") return Health{.ready = false};
  if (path == "/readyz") return Health{.ready = true};
  if (!path.starts_with('/')) return Unknown{};
  path.remove_prefix(1);
  if (path.ends_with('/')) path.remove_suffix(1);
  std::vector<std::string> parts;
  for (const auto& part : text::split(path, '/')) {
    auto plain = unescaped(part, false);
    if (!plain) return fail(Code::kInvalidArgument, "the path has an escape that is none");
    parts.push_back(std::move(*plain));
  }
  if (parts.empty() || parts[0] != "apis") return Unknown{};
  if (parts.size() == 1) return Groups{};
  if (parts[1] != kGroup) return Unknown{};
  if (parts.size() == 2) return Group{};
  if (!is_version(parts[2])) return Unknown{};
  if (parts.size() == 3) return Resources{parts[2]};
  if (parts.size() != 8 || parts[3] != "namespaces" || parts[5] != "pods") return Unknown{};
  return pod_metric(parts, target);
}

}  // namespace gpulet::metrics_api
