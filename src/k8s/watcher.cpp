#include "k8s/watcher.h"

#include <optional>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/log.h"
#include "k8s/api_client.h"
#include "k8s/objects.h"

namespace gpulet::k8s {
namespace {

using nlohmann::json;

Result<json> parse_object(std::string_view text) {
  auto value = parse_json(text);
  if (value.is_discarded()) return fail(Code::kIo, "the API server returned something that is not JSON");
  return value;
}

// Without spec and status. Source: Kubernetes API concepts, "Metadata-only fetches".
constexpr const char* kMetadataObject = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
constexpr const char* kMetadataList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

std::string accept_value(bool only_metadata, const char* partial) {
  return only_metadata ? partial : "application/json";
}

class SingleObjectWatcher final : public ObjectWatcher {
 public:
  SingleObjectWatcher(Loop& loop, ClientConfig access, WatchedObject what, WatchTiming timing,
                      std::function<void(const json&)> changed)
      : loop_(loop),
        what_(std::move(what)),
        path_(what_.collection + "?fieldSelector=metadata.name%3D" + what_.name),
        timing_(timing),
        changed_(std::move(changed)),
        client_(loop, std::move(access), timing.request_limit),
        backoff_(timing.backoff, static_cast<std::uint64_t>(loop.now().time_since_epoch().count())) {
    next_ = loop_.after(Duration::zero(), [this] { list_object(); });
  }

 private:
  void list_object() {
    client_.send_request(
        {.method = "GET", .path = path_, .accept = accept_value(what_.metadata, kMetadataList)},
        [this](const Result<http::ClientResponse>& response) {
          if (!response) return retry_list_or_watch(response.error());
          if (response->status != 200) return on_list_refused(response->status, response->body);
          const auto list = parse_object(response->body);
          if (!list) return retry_list_or_watch(list.error());
          version_ = json_text(json_member(json_member(*list, "metadata"), "resourceVersion"));
          const auto& items = json_member(*list, "items");
          if (version_.empty() || !items.is_array())
            return retry_list_or_watch({Code::kIo, "the API server returned something that is not a list"});
          logged_refusal_ = false;
          backoff_.reset();
          on_object(items.empty() ? json() : items.front());
          next_ = loop_.after(Duration::zero(), [this] { watch_changes(); });
        });
  }

  void watch_changes() {
    line_.clear();
    gone_ = false;
    const std::string path = path_ + "&watch=true&allowWatchBookmarks=true&timeoutSeconds=" +
                             std::to_string(timing_.watch_for.count()) + "&resourceVersion=" + version_;
    // The server ends the watch; a connection that is silent for longer is broken.
    const Duration whole = timing_.watch_for + timing_.request_limit;
    client_.stream_response(
        {.method = "GET", .path = path, .accept = accept_value(what_.metadata, kMetadataObject)}, whole,
        [this](std::string_view piece) { return consume_watch_bytes(piece); },
        [this](const Result<http::ClientResponse>& response) {
          if (gone_ || (response && response->status == kStatusGone)) {
            next_ = loop_.after(backoff_.next_delay(), [this] { list_object(); });
          } else if (!response) {
            retry_list_or_watch(response.error());
          } else if (response->status != 200) {
            on_list_refused(response->status, response->body);
          } else {
            next_ = loop_.after(backoff_.next_delay(), [this] { watch_changes(); });
          }
        });
  }

  Status consume_watch_bytes(std::string_view piece) {
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
    GPULET_TRY_ASSIGN(const auto event, parse_object(line));
    const std::string type = json_text(json_member(event, "type"));
    const auto& object = json_member(event, "object");
    if (type == "ERROR") {
      const auto& code = json_member(object, "code");
      gone_ = code.is_number_integer() && code.get<std::int64_t>() == kStatusGone;
      return fail(Code::kUnavailable,
                  "the API server ended the watch: " + json_text(json_member(object, "message")));
    }
    const std::string version = json_text(json_member(json_member(object, "metadata"), "resourceVersion"));
    if (version.empty()) return fail(Code::kIo, "the API server sent an event without a version");
    version_ = version;
    backoff_.reset();
    if (type == "ADDED" || type == "MODIFIED") on_object(object);
    return {};
  }

  void on_object(json object) {
    object_ = std::move(object);
    // In its own turn of the loop, because `changed` may destroy the client.
    notification_ = loop_.after(Duration::zero(), [this] { changed_(object_); });
  }

  void on_list_refused(int status, const std::string& body) {
    if (status == kStatusGone) {
      next_ = loop_.after(backoff_.next_delay(), [this] { list_object(); });
      return;
    }
    if (!logged_refusal_) {
      const auto answer = parse_object(body);
      log::warning(
          "the API server refuses " + what_.description + "; it requires get, list and watch on " +
              what_.resource,
          {{"status", status}, {"message", answer ? json_text(json_member(*answer, "message")) : ""}});
    }
    logged_refusal_ = true;
    next_ = loop_.after(timing_.backoff.max, [this] { list_object(); });
  }

  // Continues the watch from the last version; without one, lists first.
  void retry_list_or_watch(const Error& error) {
    log::debug("a watch ended", {{"what", what_.description}, {"error", error.full_message()}});
    next_ =
        loop_.after(backoff_.next_delay(), [this] { version_.empty() ? list_object() : watch_changes(); });
  }

  Loop& loop_;
  const WatchedObject what_;
  const std::string path_;
  const WatchTiming timing_;
  std::function<void(const json&)> changed_;
  ApiClient client_;
  Backoff backoff_;
  std::string version_;  // of the last object seen
  std::string line_;     // the incomplete last line of the watch
  bool gone_ = false;    // the version is too old to continue from
  bool logged_refusal_ = false;
  json object_;
  Subscription next_, notification_;
};

}  // namespace

std::unique_ptr<ObjectWatcher> ObjectWatcher::watch_object(Loop& loop, ClientConfig access,
                                                           WatchedObject what, WatchTiming timing,
                                                           std::function<void(const json&)> changed) {
  return std::make_unique<SingleObjectWatcher>(loop, std::move(access), std::move(what), timing,
                                               std::move(changed));
}

namespace {

using nlohmann::json;

class ObjectLabelWatcher final : public NodeLabelWatcher {
 public:
  ObjectLabelWatcher(Loop& loop, const ClientConfig& access, WatchTiming timing,
                     std::function<void(const Labels&)> changed)
      : changed_(std::move(changed)),
        watch_(ObjectWatcher::watch_object(loop, access,
                                           {.collection = "/api/v1/nodes",
                                            .name = access.node_name,
                                            .description = "this node's labels",
                                            .resource = "nodes",
                                            .metadata = true},
                                           timing, [this](const json& node) {
                                             on_node(json_text_map(json_member(node, "metadata"), "labels"));
                                           })) {}

 private:
  void on_node(Labels labels) {
    if (known_ && *known_ == labels) return;
    known_ = std::move(labels);
    changed_(*known_);
  }

  std::function<void(const Labels&)> changed_;
  std::optional<Labels> known_;
  std::unique_ptr<ObjectWatcher> watch_;
};

}  // namespace

std::unique_ptr<NodeLabelWatcher> NodeLabelWatcher::watch_node_labels(
    Loop& loop, const ClientConfig& access, WatchTiming timing, std::function<void(const Labels&)> changed) {
  return std::make_unique<ObjectLabelWatcher>(loop, access, timing, std::move(changed));
}

namespace {

class PagedCollectionWatcher final : public CollectionWatcher {
 public:
  PagedCollectionWatcher(Loop& loop, ClientConfig access, Collection collection, CollectionTiming timing,
                         CollectionEvents events)
      : loop_(loop),
        collection_(std::move(collection)),
        timing_(timing),
        events_(std::move(events)),
        client_(loop, std::move(access), timing.request_limit),
        backoff_(timing.backoff, static_cast<std::uint64_t>(loop.now().time_since_epoch().count())) {
    schedule_step(&PagedCollectionWatcher::list_objects);
  }

  std::uint64_t completed_lists() const override { return lists_; }
  const std::string& current_error() const override { return error_; }

 private:
  void schedule_step(void (PagedCollectionWatcher::*step)(), Duration delay = Duration::zero()) {
    next_ = loop_.after(delay, [this, step] { (this->*step)(); });
  }

  std::string request_path(const std::string& query) const {
    return collection_.path + "?" + (collection_.query.empty() ? "" : collection_.query + "&") + query;
  }

  void list_objects() {
    continue_.clear();
    listing_ = true;
    if (events_.on_list_begin) events_.on_list_begin();
    request_page();
  }

  void request_page() {
    version_.clear();
    const std::string from = std::exchange(continue_, {});
    members_.emplace(
        kMaxCollectedBytes,
        [this](std::string_view key, std::string_view value) {
          if (key != "metadata") return;
          version_ = string_member(value, "resourceVersion");
          continue_ = string_member(value, "continue");
        },
        [this](std::string_view item) {
          if (events_.on_object) events_.on_object(item);
        });
    client_.stream_response(
        {.method = "GET",
         .path = request_path("limit=" + std::to_string(timing_.page) +
                              (from.empty() ? "" : "&continue=" + encode_query_value(from))),
         .accept = accept_value(collection_.metadata, kMetadataList)},
        timing_.page_limit, [this](std::string_view piece) { return members_->feed(piece); },
        [this](const Result<http::ClientResponse>& response) { on_page(response); });
  }

  void on_page(const Result<http::ClientResponse>& response) {
    if (!response) return retry_collection(response.error());
    if (response->status == kStatusGone)
      return schedule_step(&PagedCollectionWatcher::list_objects,
                           backoff_.next_delay());  // a page arrived too late
    if (response->status != 200) return on_collection_refused(*response);
    if (!members_->is_done() || version_.empty()) {
      return retry_collection({Code::kIo, "the API server returned something that is not a list"});
    }
    if (!continue_.empty()) return schedule_step(&PagedCollectionWatcher::request_page);
    ++lists_;
    listing_ = false;
    clear_error();
    if (events_.on_list_end) events_.on_list_end();
    schedule_step(&PagedCollectionWatcher::watch_collection_changes);
  }

  void watch_collection_changes() {
    line_.clear();
    version_expired_ = false;
    // The server ends the watch; a connection that is silent for longer is broken.
    const Duration whole = timing_.watch_for + timing_.request_limit;
    client_.stream_response(
        {.method = "GET",
         .path = request_path("watch=true&allowWatchBookmarks=true&timeoutSeconds=" +
                              std::to_string(timing_.watch_for.count()) + "&resourceVersion=" + version_),
         .accept = accept_value(collection_.metadata, kMetadataObject)},
        whole, [this](std::string_view piece) { return consume_event_bytes(piece); },
        [this](const Result<http::ClientResponse>& response) { on_end(response); });
  }

  void on_end(const Result<http::ClientResponse>& response) {
    if (version_expired_ || (response && response->status == kStatusGone)) {
      return schedule_step(&PagedCollectionWatcher::list_objects, backoff_.next_delay());
    }
    if (!response) return retry_collection(response.error());
    if (response->status != 200) return on_collection_refused(*response);
    schedule_step(&PagedCollectionWatcher::watch_collection_changes, backoff_.next_delay());
  }

  Status consume_event_bytes(std::string_view piece) {
    std::size_t begin = 0;
    for (std::size_t end; (end = piece.find('\n', begin)) != std::string_view::npos; begin = end + 1) {
      const auto rest = piece.substr(begin, end - begin);
      if (line_.empty()) {
        GPULET_TRY(on_line(rest));
      } else {
        line_ += rest;
        const std::string line = std::exchange(line_, {});
        GPULET_TRY(on_line(line));
      }
    }
    line_ += piece.substr(begin);
    if (line_.size() > kMaxCollectedBytes)
      return fail(Code::kIo, "the API server sent an object above 4 MiB");
    return {};
  }

  Status on_line(std::string_view line) {
    if (line.find_first_not_of(" \r\t") == std::string_view::npos) return {};
    std::string type, object;
    JsonStream members(
        kMaxCollectedBytes,
        [&](std::string_view key, std::string_view value) {
          if (key == "type") type = value.substr(1, value.size() - 2);
          if (key == "object") object = value;
        },
        nullptr);
    GPULET_TRY(members.feed(line));
    if (!members.is_done() || object.empty())
      return fail(Code::kIo, "the API server sent something that is not an event");
    if (type == "ERROR") return on_error_event(object);
    const std::string version = metadata_string(object, "resourceVersion");
    if (version.empty()) return fail(Code::kIo, "the API server sent an event without a version");
    version_ = version;
    clear_error();
    if ((type == "ADDED" || type == "MODIFIED") && events_.on_object) events_.on_object(object);
    if (type == "DELETED" && events_.on_deleted) events_.on_deleted(object);
    return {};
  }

  Status on_error_event(const std::string& object) {
    const auto status = parse_json(object);
    const auto& code = json_member(status, "code");
    version_expired_ = code.is_number_integer() && code.get<std::int64_t>() == kStatusGone;
    return fail(Code::kUnavailable,
                "the API server ended the watch: " + json_text(json_member(status, "message")));
  }

  void clear_error() {
    backoff_.reset();
    error_.clear();
    warned_ = false;
  }

  // A refusal of the server: the permission or the kind is missing.
  void on_collection_refused(const http::ClientResponse& response) {
    error_ = describe_response(response);
    if (response.status == 401 || response.status == 403 || response.status == 404) {
      error_ += " (needed: " + collection_.permission + ")";
    }
    warn_once();
    schedule_step(&PagedCollectionWatcher::list_objects, backoff_.next_delay());
  }

  // Continues the watch from the last version; without one, lists first.
  void retry_collection(const Error& error) {
    if (listing_) {
      error_ = error.full_message();
      warn_once();
    }
    log::debug("the following of a collection ended",
               {{"path", collection_.path}, {"error", error.full_message()}});
    if (!listing_ && events_.on_connection_lost) events_.on_connection_lost();
    schedule_step(
        listing_ ? &PagedCollectionWatcher::list_objects : &PagedCollectionWatcher::watch_collection_changes,
        backoff_.next_delay());
  }

  void warn_once() {
    if (std::exchange(warned_, true)) return;
    log::warning("the API server refuses a list; retrying", {{"path", collection_.path}, {"error", error_}});
  }

  Loop& loop_;
  const Collection collection_;
  const CollectionTiming timing_;
  const CollectionEvents events_;
  ApiClient client_;
  Backoff backoff_;
  std::optional<JsonStream> members_;  // of the current page
  std::string version_;                // of the list, or of the last object seen
  std::string continue_;               // token of the next page
  std::string line_;                   // the incomplete last line of the watch
  bool listing_ = true;                // the list is not complete yet
  bool version_expired_ = false;       // the version is too old to continue from
  bool warned_ = false;
  std::uint64_t lists_ = 0;
  std::string error_;
  Subscription next_;
};

}  // namespace

std::unique_ptr<CollectionWatcher> CollectionWatcher::watch_collection(Loop& loop, ClientConfig access,
                                                                       Collection collection,
                                                                       CollectionTiming timing,
                                                                       CollectionEvents events) {
  return std::make_unique<PagedCollectionWatcher>(loop, std::move(access), std::move(collection), timing,
                                                  std::move(events));
}

}  // namespace gpulet::k8s
