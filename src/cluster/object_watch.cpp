#include "cluster/object_watch.h"

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cluster/api_client.h"
#include "cluster/objects.h"

namespace gpulet::cluster {
namespace {

using nlohmann::json;

Result<json> parsed(std::string_view text) {
  auto value = json::parse(text, nullptr, false);
  if (value.is_discarded()) return fail(Code::kIo, "the API server answered with what is no JSON");
  return value;
}

class OneWatch final : public ObjectWatch {
 public:
  OneWatch(Loop& loop, Access access, WatchedObject what, WatchTiming timing,
           std::function<void(const json&)> changed)
      : loop_(loop),
        what_(std::move(what)),
        path_(what_.collection + "?fieldSelector=metadata.name%3D" + what_.name),
        timing_(timing),
        changed_(std::move(changed)),
        client_(loop, std::move(access), timing.request_limit),
        backoff_(timing.backoff, static_cast<std::uint64_t>(loop.now().time_since_epoch().count())) {
    next_ = loop_.after(Duration::zero(), [this] { list(); });
  }

 private:
  void list() {
    client_.request({.method = "GET", .path = path_}, [this](const Result<ApiResponse>& response) {
      if (!response) return again(response.error());
      if (response->status != 200) return refused(response->status, response->body);
      const auto list = parsed(response->body);
      if (!list) return again(list.error());
      version_ = text_of(member(member(*list, "metadata"), "resourceVersion"));
      const auto& items = member(*list, "items");
      if (version_.empty() || !items.is_array())
        return again({Code::kIo, "the API server answered without a list"});
      told_refusal_ = false;
      backoff_.reset();
      learn(items.empty() ? json() : items.front());
      next_ = loop_.after(Duration::zero(), [this] { watch(); });
    });
  }

  void watch() {
    line_.clear();
    gone_ = false;
    const std::string path = path_ + "&watch=true&allowWatchBookmarks=true&timeoutSeconds=" +
                             std::to_string(timing_.watch_for.count()) + "&resourceVersion=" + version_;
    // The server ends it; what is silent for longer than that is a connection that has gone.
    const Duration whole = timing_.watch_for + timing_.request_limit;
    client_.stream(
        {.method = "GET", .path = path}, whole, [this](std::string_view piece) { return take(piece); },
        [this](const Result<ApiResponse>& response) {
          if (gone_ || (response && response->status == kTooOld)) {
            next_ = loop_.after(backoff_.next(), [this] { list(); });
          } else if (!response) {
            again(response.error());
          } else if (response->status != 200) {
            refused(response->status, response->body);
          } else {
            next_ = loop_.after(backoff_.next(), [this] { watch(); });
          }
        });
  }

  Status take(std::string_view piece) {
    line_ += piece;
    std::size_t begin = 0;
    for (std::size_t end; (end = line_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      GPULET_TRY(on_line(std::string_view(line_).substr(begin, end - begin)));
    }
    line_.erase(0, begin);
    if (line_.size() > kMaxObjectBytes) return fail(Code::kIo, "the API server sent an object above 4 MiB");
    return {};
  }

  Status on_line(std::string_view line) {
    if (line.find_first_not_of(" \r\t") == std::string_view::npos) return {};
    GPULET_TRY_ASSIGN(const auto event, parsed(line));
    const std::string type = text_of(member(event, "type"));
    const auto& object = member(event, "object");
    if (type == "ERROR") {
      const auto& code = member(object, "code");
      gone_ = code.is_number_integer() && code.get<std::int64_t>() == kTooOld;
      return fail(Code::kUnavailable,
                  "the API server ended the watch: " + text_of(member(object, "message")));
    }
    const std::string version = text_of(member(member(object, "metadata"), "resourceVersion"));
    if (version.empty()) return fail(Code::kIo, "the API server sent an event without a version");
    version_ = version;
    backoff_.reset();
    if (type == "ADDED" || type == "MODIFIED") learn(object);
    return {};
  }

  void learn(json object) {
    object_ = std::move(object);
    // From the loop and not from inside the client, which `changed` may end.
    tell_ = loop_.after(Duration::zero(), [this] { changed_(object_); });
  }

  void refused(int status, const std::string& body) {
    if (status == kTooOld) {
      next_ = loop_.after(backoff_.next(), [this] { list(); });
      return;
    }
    if (!told_refusal_) {
      const auto answer = parsed(body);
      log::warning(
          "the API server refuses " + what_.about + "; needed are get, list and watch on " + what_.right,
          {{"status", status}, {"message", answer ? text_of(member(*answer, "message")) : ""}});
    }
    told_refusal_ = true;
    next_ = loop_.after(timing_.backoff.longest, [this] { list(); });
  }

  // From where it was, once there is a list to go on from.
  void again(const Error& error) {
    log::debug("a watch ended", {{"what", what_.about}, {"error", error.text()}});
    next_ = loop_.after(backoff_.next(), [this] { version_.empty() ? list() : watch(); });
  }

  Loop& loop_;
  const WatchedObject what_;
  const std::string path_;
  const WatchTiming timing_;
  std::function<void(const json&)> changed_;
  ApiClient client_;
  Backoff backoff_;
  std::string version_;  // of the last that was seen
  std::string line_;     // of the watch, as far as it has come
  bool gone_ = false;    // the version is too old to go on from
  bool told_refusal_ = false;
  json object_;
  Subscription next_, tell_;
};

}  // namespace

std::unique_ptr<ObjectWatch> ObjectWatch::start(Loop& loop, Access access, WatchedObject what,
                                                WatchTiming timing,
                                                std::function<void(const json&)> changed) {
  return std::make_unique<OneWatch>(loop, std::move(access), std::move(what), timing, std::move(changed));
}

}  // namespace gpulet::cluster
