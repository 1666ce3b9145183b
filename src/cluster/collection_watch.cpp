#include "cluster/collection_watch.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/log.h"
#include "cluster/api_client.h"
#include "cluster/json_members.h"
#include "cluster/objects.h"

namespace gpulet::cluster {
namespace {

constexpr const char* kMetadataObject = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
constexpr const char* kMetadataList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

class ListWatch final : public CollectionWatch {
 public:
  ListWatch(Loop& loop, Access access, Collection collection, CollectionTiming timing,
            CollectionEvents events)
      : loop_(loop),
        collection_(std::move(collection)),
        timing_(timing),
        events_(std::move(events)),
        client_(loop, std::move(access), timing.request_limit),
        backoff_(timing.backoff, static_cast<std::uint64_t>(loop.now().time_since_epoch().count())) {
    soon(&ListWatch::list);
  }

  std::uint64_t lists() const override { return lists_; }
  const std::string& trouble() const override { return trouble_; }

 private:
  void soon(void (ListWatch::*step)(), Duration delay = Duration::zero()) {
    next_ = loop_.after(delay, [this, step] { (this->*step)(); });
  }

  std::string path(const std::string& query) const {
    return collection_.path + "?" + (collection_.query.empty() ? "" : collection_.query + "&") + query;
  }
  std::string accept(const char* partial) const {
    return collection_.metadata ? std::string(partial) : std::string("application/json");
  }

  void list() {
    continue_.clear();
    listing_ = true;
    if (events_.listing) events_.listing();
    page();
  }

  void page() {
    version_.clear();
    const std::string from = std::exchange(continue_, {});
    members_.emplace(
        kMaxCollectedBytes,
        [this](std::string_view key, std::string_view value) {
          if (key != "metadata") return;
          version_ = text_member(value, "resourceVersion");
          continue_ = text_member(value, "continue");
        },
        [this](std::string_view item) {
          if (events_.found) events_.found(item);
        });
    client_.stream(
        {.method = "GET",
         .path = path("limit=" + std::to_string(timing_.page) +
                      (from.empty() ? "" : "&continue=" + in_query(from))),
         .accept = accept(kMetadataList)},
        timing_.page_limit, [this](std::string_view piece) { return members_->feed(piece); },
        [this](const Result<ApiResponse>& response) { on_page(response); });
  }

  void on_page(const Result<ApiResponse>& response) {
    if (!response) return again(response.error());
    if (response->status == kTooOld) return soon(&ListWatch::list, backoff_.next());  // a page came too late
    if (response->status != 200) return refused(*response);
    if (!members_->done() || version_.empty()) {
      return again({Code::kIo, "the API server answered without a list"});
    }
    if (!continue_.empty()) return soon(&ListWatch::page);
    ++lists_;
    listing_ = false;
    fine();
    if (events_.listed) events_.listed();
    soon(&ListWatch::watch);
  }

  void watch() {
    line_.clear();
    gone_ = false;
    // The server ends it; what is silent for longer than that is a connection that has gone.
    const Duration whole = timing_.watch_for + timing_.request_limit;
    client_.stream(
        {.method = "GET",
         .path = path("watch=true&allowWatchBookmarks=true&timeoutSeconds=" +
                      std::to_string(timing_.watch_for.count()) + "&resourceVersion=" + version_),
         .accept = accept(kMetadataObject)},
        whole, [this](std::string_view piece) { return take(piece); },
        [this](const Result<ApiResponse>& response) { on_end(response); });
  }

  void on_end(const Result<ApiResponse>& response) {
    if (gone_ || (response && response->status == kTooOld)) {
      return soon(&ListWatch::list, backoff_.next());
    }
    if (!response) return again(response.error());
    if (response->status != 200) return refused(*response);
    soon(&ListWatch::watch, backoff_.next());
  }

  Status take(std::string_view piece) {
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
    JsonMembers members(
        kMaxCollectedBytes,
        [&](std::string_view key, std::string_view value) {
          if (key == "type") type = value.substr(1, value.size() - 2);
          if (key == "object") object = value;
        },
        nullptr);
    GPULET_TRY(members.feed(line));
    if (!members.done() || object.empty()) return fail(Code::kIo, "the API server sent what is no event");
    if (type == "ERROR") return ended_by(object);
    const std::string version = metadata_text(object, "resourceVersion");
    if (version.empty()) return fail(Code::kIo, "the API server sent an event without a version");
    version_ = version;
    fine();
    if ((type == "ADDED" || type == "MODIFIED") && events_.found) events_.found(object);
    if (type == "DELETED" && events_.gone) events_.gone(object);
    return {};
  }

  Status ended_by(const std::string& object) {
    const auto status = nlohmann::json::parse(object, nullptr, false);
    const auto& code = member(status, "code");
    gone_ = code.is_number_integer() && code.get<std::int64_t>() == kTooOld;
    return fail(Code::kUnavailable, "the API server ended the watch: " + text_of(member(status, "message")));
  }

  void fine() {
    backoff_.reset();
    trouble_.clear();
    told_ = false;
  }

  // What the server does not give: the right, or the kind, is missing.
  void refused(const ApiResponse& response) {
    trouble_ = said(response);
    if (response.status == 401 || response.status == 403 || response.status == 404) {
      trouble_ += " (needed: " + collection_.right + ")";
    }
    tell();
    soon(&ListWatch::list, backoff_.next());
  }

  // From where it was, once there is a list to go on from.
  void again(const Error& error) {
    if (listing_) {
      trouble_ = error.text();
      tell();
    }
    log::debug("the following of a collection ended", {{"path", collection_.path}, {"error", error.text()}});
    soon(listing_ ? &ListWatch::list : &ListWatch::watch, backoff_.next());
  }

  void tell() {
    if (std::exchange(told_, true)) return;
    log::warning("the API server does not list; trying again",
                 {{"path", collection_.path}, {"trouble", trouble_}});
  }

  Loop& loop_;
  const Collection collection_;
  const CollectionTiming timing_;
  const CollectionEvents events_;
  ApiClient client_;
  Backoff backoff_;
  std::optional<JsonMembers> members_;  // of the page that comes
  std::string version_;                 // of the list, or of the last that was seen
  std::string continue_;                // where the next page begins
  std::string line_;                    // of the watch, as far as it has come
  bool listing_ = true;                 // the list is not whole yet
  bool gone_ = false;                   // the version is too old to go on from
  bool told_ = false;
  std::uint64_t lists_ = 0;
  std::string trouble_;
  Subscription next_;
};

}  // namespace

std::unique_ptr<CollectionWatch> CollectionWatch::start(Loop& loop, Access access, Collection collection,
                                                        CollectionTiming timing, CollectionEvents events) {
  return std::make_unique<ListWatch>(loop, std::move(access), std::move(collection), timing,
                                     std::move(events));
}

}  // namespace gpulet::cluster
