#include "agent/counters_source.h"

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cluster/objects.h"

namespace gpulet::agent {
namespace {

constexpr const char* kKey = "metrics";  // as dcgm-exporter reads it

Result<metrics::Counters> counters_of(const nlohmann::json& config_map, const std::string& about) {
  if (config_map.is_null()) return fail(Code::kNotFound, "there is no such ConfigMap", about);
  const auto& text = cluster::member(cluster::member(config_map, "data"), kKey);
  if (!text.is_string())
    return fail(Code::kInvalidArgument, std::string("it has no key ") + kKey + ", which has the counters",
                about);
  return metrics::parse_counters(text.get_ref<const std::string&>(), about);
}

}  // namespace

CountersSource::CountersSource(Loop& loop, Reporter& reporter, std::function<void()> changed)
    : loop_(loop), reporter_(reporter), changed_(std::move(changed)) {}

void CountersSource::apply(const std::string& file, const std::string& config_map) {
  if (file == file_ && config_map == config_map_) return;
  file_ = file;
  config_map_ = config_map;
  follow();
}

void CountersSource::set_access(cluster::Access access) {
  access_ = std::move(access);
  if (!config_map_.empty()) follow();
}

void CountersSource::follow() {
  file_watch_.reset();
  config_map_watch_.reset();
  error_.clear();
  if (!config_map_.empty()) {
    follow_config_map();
  } else if (!file_.empty()) {
    follow_file();
  } else {
    counters_ = metrics::default_counters();
  }
}

void CountersSource::follow_file() {
  auto watch = FileWatch::start(loop_, file_, [this] { read_file_again(); });
  if (watch) {
    file_watch_ = std::move(*watch);
  } else {
    log::warning("changes of the counters file are not seen", watch.error());
  }
  read_file_again();
}

void CountersSource::read_file_again() {
  const auto text = read_file(file_, metrics::kMostCountersBytes);
  use(text ? metrics::parse_counters(*text, file_) : Result<metrics::Counters>(fail(text.error())), file_);
}

void CountersSource::follow_config_map() {
  const auto parts = text::split(config_map_, ':');
  const std::string about = "ConfigMap " + config_map_;
  if (parts.size() != 2 || !cluster::is_name(parts[0]) || !cluster::is_name(parts[1])) {
    return use(fail(Code::kInvalidArgument, "that is no NAMESPACE:NAME, as monitoring:gpu-counters is",
                    "gpulet.metrics.countersConfigMap '" + config_map_ + "'"),
               about);
  }
  if (!access_) return;  // it comes, or there is none, and then the reporter has said why
  config_map_watch_ = cluster::ObjectWatch::start(
      loop_, *access_,
      {.collection = "/api/v1/namespaces/" + parts[0] + "/configmaps",
       .name = parts[1],
       .about = about,
       .right = "configmaps"},
      {}, [this, about](const nlohmann::json& found) { use(counters_of(found, about), about); });
}

void CountersSource::use(const Result<metrics::Counters>& counters, const std::string& where) {
  if (!counters) {
    if (const auto error = counters.error().text(); std::exchange(error_, error) != error)
      reporter_.event(Reporter::Severity::kWarning, "Counters", error + "; the metrics stay as they are");
    return;
  }
  error_.clear();
  if (counters->all == counters_.all) return;
  counters_ = *counters;
  for (const auto& row : counters_.left_out) log::info(row);
  log::info("the counters are in force", {{"from", where}, {"metrics", counters_.all.size()}});
  loop_.post([changed = changed_] { changed(); });
}

}  // namespace gpulet::agent
