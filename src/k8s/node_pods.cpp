#include "k8s/node_pods.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "k8s/api_client.h"

namespace gpulet::k8s {
namespace {

using nlohmann::json;

constexpr const char* kPodMetadataList =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
constexpr std::size_t kMaxPodBytes = 4u << 20;

bool is_of_daemon_set(const json& metadata) {
  const auto& owners = json_member(metadata, "ownerReferences");
  return owners.is_array() && std::ranges::any_of(owners, [](const json& owner) {
           return json_text(json_member(owner, "kind")) == "DaemonSet";
         });
}

class QueueingNodePods final : public NodePods {
 public:
  QueueingNodePods(Loop& loop, ClientConfig access, Duration limit)
      : loop_(loop), limit_(limit), node_(access.node_name), client_(loop, std::move(access), limit) {}

  void list_pods(const PodSelection& selection,
                 std::function<void(Result<std::vector<PodRef>>)> done) override {
    add_work([this, selection, done = std::move(done)] { send_list(selection, done); });
  }
  void delete_pods(std::vector<PodRef> pods, std::function<void(Status)> done) override {
    add_work([this, pods = std::move(pods), done = std::move(done)] { send_next_deletion(pods, 0, done); });
  }

 private:
  void add_work(std::function<void()> work) {
    work_.push_back(std::move(work));
    if (work_.size() == 1 && !busy_) schedule_work();
  }
  void schedule_work() {
    next_ = loop_.after(Duration::zero(), [this] {
      next_.reset();
      if (work_.empty()) return client_.close_connection();
      busy_ = true;
      const auto work = std::move(work_.front());
      work_.pop_front();
      work();
    });
  }
  // Before the callback, which may destroy this object.
  void end_work() {
    busy_ = false;
    schedule_work();
  }

  void send_list(const PodSelection& selection,
                 const std::function<void(Result<std::vector<PodRef>>)>& done) {
    found_.clear();
    members_.emplace(
        kMaxPodBytes, [](std::string_view, std::string_view) {},
        [this, key = selection.node_selector_key, on_pod = selection.on_pending_pod](std::string_view item) {
          if (on_pod) return on_pod(item);
          add_pod(item, key);
        });
    std::string path = selection.name_space.empty()
                           ? "/api/v1/pods"
                           : "/api/v1/namespaces/" + encode_query_value(selection.name_space) + "/pods";
    path += "?fieldSelector=" + encode_query_value("spec.nodeName=" + node_ +
                                                   (selection.on_pending_pod ? ",status.phase=Pending" : ""));
    if (!selection.label_selector.empty())
      path += "&labelSelector=" + encode_query_value(selection.label_selector);
    const bool whole = !selection.node_selector_key.empty() || selection.on_pending_pod;
    client_.stream_response(
        {.method = "GET", .path = path, .accept = whole ? "application/json" : kPodMetadataList}, 2 * limit_,
        [this](std::string_view piece) { return members_->feed(piece); },
        [this, done](const Result<http::ClientResponse>& response) {
          auto result = list_result(response);
          end_work();
          done(std::move(result));
        });
  }

  Result<std::vector<PodRef>> list_result(const Result<http::ClientResponse>& response) {
    if (!response) return fail(response.error());
    if (response->status != 200) return fail(refusal(*response, "list on pods"));
    if (!members_->is_done()) return fail(Code::kIo, "the API server returned something that is not a list");
    return std::exchange(found_, {});
  }

  void add_pod(std::string_view item, const std::string& node_selector_key) {
    const auto pod = parse_json(item);
    const auto& metadata = json_member(pod, "metadata");
    PodRef ref{json_text(json_member(metadata, "namespace")), json_text(json_member(metadata, "name")),
               json_text(json_member(metadata, "uid"))};
    if (!node_selector_key.empty()) {
      const auto& selector = json_member(json_member(pod, "spec"), "nodeSelector");
      if (!is_of_daemon_set(metadata) || !selector.is_object() || !selector.contains(node_selector_key))
        return;
    }
    found_.push_back(std::move(ref));
  }

  void send_next_deletion(const std::vector<PodRef>& pods, std::size_t next,
                          const std::function<void(Status)>& done) {
    if (next == pods.size()) {
      end_work();
      return done({});
    }
    const auto& pod = pods[next];
    client_.send_request(
        {.method = "DELETE",
         .path = "/api/v1/namespaces/" + encode_query_value(pod.name_space) + "/pods/" +
                 encode_query_value(pod.name),
         .content_type = "application/json",
         .body = serialize_json(
             {{"apiVersion", "v1"}, {"kind", "DeleteOptions"}, {"preconditions", {{"uid", pod.uid}}}})},
        [this, pods, next, done](const Result<http::ClientResponse>& response) {
          // 404: gone; 409: another Pod has the name.
          if (response && (response->status / 100 == 2 || response->status == 404 || response->status == 409))
            return send_next_deletion(pods, next + 1, done);
          const Error error = response ? refusal(*response, "delete on pods") : response.error();
          end_work();
          done(fail(error));
        });
  }

  static Error refusal(const http::ClientResponse& response, const std::string& right) {
    if (response.status == 403)
      return Error(Code::kPermissionDenied, describe_response(response) + "; it needs " + right);
    return Error(Code::kIo, describe_response(response));
  }

  Loop& loop_;
  const Duration limit_;
  const std::string node_;
  ApiClient client_;
  std::deque<std::function<void()>> work_;
  bool busy_ = false;
  std::optional<JsonStream> members_;
  std::vector<PodRef> found_;
  Subscription next_;
};

}  // namespace

std::unique_ptr<NodePods> NodePods::start_node_pods(Loop& loop, ClientConfig access, Duration request_limit) {
  return std::make_unique<QueueingNodePods>(loop, std::move(access), request_limit);
}

}  // namespace gpulet::k8s
