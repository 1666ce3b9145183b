#include "migrate/cluster_look.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include "cluster/api_client.h"
#include "cluster/json_members.h"
#include "cluster/objects.h"
#include "migrate/helm.h"
#include "migrate/objects.h"

namespace gpulet::migrate {
namespace {

class LookAtCluster {
 public:
  LookAtCluster(const cluster::Access& access, Duration limit)
      : access_(access), limit_(limit), client_(loop_, access, limit) {}

  Result<Facts> run() {
    facts_.of_cluster = true;
    facts_.place = access_.host;
    const auto add = [this](const char* kind) {
      return [this, kind](std::string_view object) {
        for (auto& program : programs_of(object, kind)) facts_.programs.push_back(std::move(program));
      };
    };
    GPULET_TRY(list("/apis/apps/v1/daemonsets", "list on daemonsets.apps", add("DaemonSet")));
    optional("/apis/apps/v1/deployments", "list on deployments.apps", add("Deployment"));
    optional("/apis/nvidia.com/v1/clusterpolicies", "list on clusterpolicies.nvidia.com",
             [this](std::string_view object) {
               if (auto policy = policy_of(object)) facts_.policies.push_back(std::move(*policy));
             });
    optional("/api/v1/nodes", "list on nodes", [this](std::string_view object) {
      if (auto node = node_of(object)) facts_.nodes.push_back(std::move(*node));
    });
    maps();
    releases();
    return std::move(facts_);
  }

 private:
  // One response, its success in pieces. Absent (404) is nullopt.
  Result<std::optional<bool>> ask(const std::string& path, const std::string& right,
                                  const std::function<Status(std::string_view)>& piece) {
    Result<cluster::ApiResponse> answer = fail(Code::kInternal, "nothing was answered");
    client_.stream({.method = "GET", .path = path}, limit_, piece,
                   [&](Result<cluster::ApiResponse> response) {
                     answer = std::move(response);
                     loop_.stop();
                   });
    loop_.run();
    if (!answer) return fail(answer.error());
    if (answer->status == 200) return std::optional(true);
    if (answer->status == 404) return std::optional<bool>();
    const bool refused = answer->status == 401 || answer->status == 403;
    return fail(refused ? Code::kPermissionDenied : Code::kUnavailable,
                (refused ? "needed is " + right + ": " : "") + cluster::said(*answer));
  }

  // In pages, and with the memory of one object.
  Status list(const std::string& path, const std::string& right,
              const std::function<void(std::string_view)>& item) {
    std::string from;
    for (std::size_t page = 0; page < kMostPages; ++page) {
      std::string metadata;
      cluster::JsonMembers members(
          kMostObjectBytes,
          [&](std::string_view key, std::string_view value) {
            if (key == "metadata") metadata = value;
          },
          item);
      const std::string query = (path.find('?') == std::string::npos ? "?" : "&") + std::string("limit=250");
      GPULET_TRY(ask(path + query + (from.empty() ? "" : "&continue=" + cluster::in_query(from)), right,
                     [&](std::string_view bytes) { return members.feed(bytes); }));
      from = cluster::text_member(metadata, "continue");
      if (from.empty()) return {};
    }
    return fail(Code::kUnsupported, "more than 50000 objects", path);
  }

  // What is not there is nothing; what is refused is said.
  void optional(const std::string& path, const std::string& right,
                const std::function<void(std::string_view)>& item) {
    if (const auto listed = list(path, right, item); !listed)
      facts_.not_read.push_back(listed.error().text());
  }

  void maps() {
    std::set<MapRef> wanted;
    for (const auto& program : facts_.programs) wanted.insert(program.maps.begin(), program.maps.end());
    for (const auto& map : wanted) {
      if (!cluster::is_name(map.name_space) || !cluster::is_name(map.name)) continue;
      const std::string name = map.name_space + "/" + map.name;
      std::string object;
      const auto read = ask("/api/v1/namespaces/" + map.name_space + "/configmaps/" + map.name,
                            "get on configmaps in " + map.name_space, [&](std::string_view bytes) -> Status {
                              if (object.size() + bytes.size() > kMostObjectBytes) {
                                return fail(Code::kIo, "larger than 4 MiB", name);
                              }
                              object += bytes;
                              return {};
                            });
      if (!read) {
        facts_.not_read.push_back("configmap " + name + ": " + read.error().text());
      } else if (!*read) {
        facts_.not_read.push_back("configmap " + name + " is read by a program, and is not there");
      } else {
        fill(facts_.programs, map, data_of(object));
      }
    }
  }

  // Those that a program found here is of, and no other Secret.
  void releases() {
    std::set<std::pair<std::string, std::string>> wanted;
    for (const auto& program : facts_.programs) {
      if (program.installed == Installed::kByChart)
        wanted.emplace(program.release_namespace, program.release);
    }
    for (const auto& [name_space, name] : wanted) {
      if (!cluster::is_name(name_space) || !cluster::is_name(name)) continue;
      const auto listed = list(
          "/api/v1/namespaces/" + name_space +
              "/secrets?labelSelector=" + cluster::in_query("owner=helm,status=deployed,name=" + name),
          "list on secrets in " + name_space, [&](std::string_view secret) {
            auto release = release_of(secret);
            if (release) {
              facts_.releases.push_back(std::move(*release));
            } else {
              facts_.not_read.push_back("release " + name_space + "/" + name + ": " + release.error().text());
            }
          });
      // The values are seen in what was made of them too, so that nothing is lost without this right.
      if (!listed && listed.error().code() != Code::kPermissionDenied) {
        facts_.not_read.push_back("release " + name_space + "/" + name + ": " + listed.error().text());
      }
    }
  }

  const cluster::Access& access_;
  const Duration limit_;
  EpollLoop loop_;
  cluster::ApiClient client_;
  Facts facts_;
};

}  // namespace

Result<Facts> look_at_cluster(const cluster::Access& access, Duration limit) {
  return LookAtCluster(access, limit).run();
}

}  // namespace gpulet::migrate
