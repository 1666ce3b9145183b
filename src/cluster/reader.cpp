#include "cluster/reader.h"

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>

#include "cluster/api_client.h"
#include "cluster/objects.h"

namespace gpulet::cluster {
namespace {

using nlohmann::json;

constexpr const char* kTable = "application/json;as=Table;g=meta.k8s.io;v=v1";

std::string controller_of(const json& metadata) {
  const auto& owners = member(metadata, "ownerReferences");
  if (!owners.is_array()) return {};
  for (const auto& owner : owners) {
    if (member(owner, "controller") == json(true)) return text_of(member(owner, "kind"));
  }
  return {};
}

// The Pod, if it is one of this node.
Result<std::optional<PodFacts>> facts_of(const json& pod, const std::string& node) {
  const auto& metadata = member(pod, "metadata");
  PodFacts facts{.pod = {text_of(member(metadata, "namespace")), text_of(member(metadata, "name")),
                         text_of(member(metadata, "uid"))},
                 .owner = controller_of(metadata),
                 .mirror = false,
                 .leaving = member(metadata, "deletionTimestamp").is_string(),
                 .annotations = texts_of(metadata, "annotations"),
                 .labels = texts_of(metadata, "labels")};
  if (facts.pod.uid.empty()) return fail(Code::kIo, "the API server answered with what is no Pod");
  if (text_of(member(member(pod, "spec"), "nodeName")) != node) return std::nullopt;
  facts.mirror = facts.annotations.contains(kMirrorPod);
  return facts;
}

class Queue final : public Reader {
 public:
  Queue(Loop& loop, Access access, Duration limit)
      : loop_(loop), node_(access.node_name), client_(loop, std::move(access), limit) {}

  void pod(const std::string& name_space, const std::string& name,
           std::function<void(Result<std::optional<PodFacts>>)> done) override {
    const std::string path =
        is_name(name_space) && is_name(name) ? "/api/v1/namespaces/" + name_space + "/pods/" + name : "";
    add({path, "application/json", "get on pods", [this, done](const Result<ApiResponse>& response) {
           if (!response) return done(fail(response.error()));
           if (response->status == 404) return done(std::nullopt);
           done(facts_of(json::parse(response->body, nullptr, false), node_));
         }});
  }

  void namespace_annotations(const std::string& name_space,
                             std::function<void(Result<Annotations>)> done) override {
    const std::string path = is_name(name_space) ? "/api/v1/namespaces/" + name_space : "";
    add({path, kMetadataOnly, "get on namespaces", [done](const Result<ApiResponse>& response) {
           if (!response) return done(fail(response.error()));
           if (response->status == 404) return done(Annotations());
           const auto object = json::parse(response->body, nullptr, false);
           const auto& metadata = member(object, "metadata");
           if (!metadata.is_object()) {
             return done(fail(Code::kIo, "the API server answered with what is no namespace"));
           }
           done(texts_of(metadata, "annotations"));
         }});
  }

  void count_nodes(const std::string& selector, std::function<void(Result<std::size_t>)> done) override {
    count("/api/v1/nodes?limit=" + std::to_string(kCountPage) +
              "&includeObject=None&labelSelector=" + in_query(selector),
          "", 0, std::move(done));
  }

 private:
  struct Read {
    std::string path;  // empty: it would lead elsewhere
    std::string accept, right;
    // A response is 200 or 404.
    std::function<void(const Result<ApiResponse>&)> answered;
  };

  void count(const std::string& path, const std::string& from, std::size_t sum,
             std::function<void(Result<std::size_t>)> done) {
    add({path + (from.empty() ? "" : "&continue=" + in_query(from)), kTable, "list on nodes",
         [this, path, sum, done = std::move(done)](const Result<ApiResponse>& response) {
           if (!response) return done(fail(response.error()));
           const auto table = json::parse(response->body, nullptr, false);
           if (text_of(member(table, "kind")) != "Table")
             return done(fail(Code::kIo, "the API server answered with what is no table"));
           const auto& rows = member(table, "rows");
           const std::size_t total = sum + (rows.is_array() ? rows.size() : 0);
           const std::string more = text_of(member(member(table, "metadata"), "continue"));
           if (more.empty() || total >= kMaxCounted) return done(std::min(total, kMaxCounted));
           count(path, more, total, done);
         }});
  }

  void add(Read read) {
    if (reads_.size() >= kMaxReads || read.path.empty()) {
      const Error error = read.path.empty()
                              ? Error(Code::kInvalidArgument, "that is no name of an object")
                              : Error(Code::kUnavailable, "too many questions wait for the API server");
      answers_.push_back([answered = std::move(read.answered), error] { answered(fail(error)); });
    } else {
      reads_.push_back(std::move(read));
    }
    wake();
  }

  void wake() {
    if (!next_) next_ = loop_.after(Duration::zero(), [this] { next(); });
  }

  // From a turn of its own: who is answered may end this.
  void next() {
    next_.reset();
    if (!answers_.empty()) {
      const auto tell = std::move(answers_.front());
      answers_.pop_front();
      wake();
      return tell();
    }
    if (busy_) return;
    if (reads_.empty()) return client_.close();
    busy_ = true;
    client_.request({.method = "GET", .path = reads_.front().path, .accept = reads_.front().accept},
                    [this](const Result<ApiResponse>& response) { on_answer(response); });
  }

  void on_answer(const Result<ApiResponse>& response) {
    busy_ = false;
    auto read = std::move(reads_.front());
    reads_.pop_front();
    auto answer = judged(response, read);
    answers_.push_back(
        [answered = std::move(read.answered), answer = std::move(answer)] { answered(answer); });
    wake();
  }

  static Result<ApiResponse> judged(const Result<ApiResponse>& response, const Read& read) {
    if (!response || response->status == 200 || response->status == 404) return response;
    if (response->status != 403) return fail(Code::kUnavailable, said(*response));
    return fail(Code::kPermissionDenied, "the agent needs this right: " + said(*response), read.right);
  }

  Loop& loop_;
  const std::string node_;
  ApiClient client_;
  std::deque<Read> reads_;  // the first is under way while busy_
  bool busy_ = false;
  std::deque<std::function<void()>> answers_;
  Subscription next_;
};

}  // namespace

std::unique_ptr<Reader> Reader::start(Loop& loop, Access access, Duration request_limit) {
  return std::make_unique<Queue>(loop, std::move(access), request_limit);
}

}  // namespace gpulet::cluster
