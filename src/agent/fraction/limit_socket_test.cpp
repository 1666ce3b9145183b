#include "agent/fraction/limit_socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "agent/fraction/container_cgroup.h"

namespace gpulet::agent {
namespace {

using testing::HasSubstr;

const std::string kSocketId(64, 'd');

std::string request_line(const std::string& id = kSocketId) {
  return R"({"version":1,"id":")" + id + R"(","pid":7,"podUID":"uid-a","container":"main","cgroup":"/a"})" +
         "\n";
}

// A loop in this thread, and clients that block at most for a moment.
class LimitSocketTest : public testing::Test {
 protected:
  LimitSocketTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "limits-XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    root = pattern;
  }
  ~LimitSocketTest() override {
    server.reset();
    std::filesystem::remove_all(root);
  }
  std::string path() const { return root + "/run/agent.sock"; }
  void open(uid_t user = ::getuid()) {
    auto opened = LimitSocket::open_socket(loop, path(), user,
                                           [this](const LimitRequest& request, LimitSocket::Done done) {
                                             requests.push_back(request);
                                             dones.push_back(std::move(done));
                                             if (answer_at_once) dones.back()({});
                                           });
    ASSERT_TRUE(opened) << opened.error().full_message();
    server = std::move(*opened);
  }
  FileDescriptor connect() {
    auto client = connect_unix_socket(path());
    EXPECT_TRUE(client) << client.error().full_message();
    return client ? std::move(*client) : FileDescriptor();
  }
  void send_text(const FileDescriptor& client, const std::string& text) {
    const ssize_t sent = ::send(client.get(), text.data(), text.size(), MSG_NOSIGNAL);
    EXPECT_EQ(sent, static_cast<ssize_t>(text.size()));
  }
  // Runs the loop until the condition holds.
  template <class Condition>
  bool run_until(Condition condition, Duration limit = std::chrono::seconds(30)) {
    const auto end = loop.now() + limit;
    while (!condition() && loop.now() < end) {
      const auto turn = loop.after(std::chrono::milliseconds(1), [this] { loop.stop_loop(); });
      loop.run_loop();
    }
    return condition();
  }
  // What the client gets until the end of its connection.
  std::string receive_all(const FileDescriptor& client) {
    std::string all;
    bool is_closed = false;
    run_until([&] {
      char buffer[4096];
      const ssize_t got = ::recv(client.get(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (got > 0) all.append(buffer, static_cast<std::size_t>(got));
      is_closed = got == 0 || (got < 0 && errno != EAGAIN);
      return is_closed;
    });
    EXPECT_TRUE(is_closed);
    return all;
  }

  EpollLoop loop;
  std::string root;
  std::unique_ptr<LimitSocket> server;
  std::vector<LimitRequest> requests;
  std::vector<LimitSocket::Done> dones;
  bool answer_at_once = true;
};

TEST(LimitRequestTest, TheNameOfThePodIsAHint) {
  const auto with = [](const std::string& fields) {
    return parse_limit_request(R"({"version":1,"id":")" + kSocketId +
                               R"(","pid":7,"podUID":"uid-a","container":"main")" + fields + "}");
  };
  EXPECT_EQ(with(R"(,"namespace":"team","pod":"train-0.a")")->pod, "train-0.a");
  EXPECT_EQ(with(R"(,"namespace":"team","pod":"train-0.a")")->name_space, "team");
  EXPECT_EQ(with(R"(,"pod":"train-0")")->pod, "") << "of an unknown namespace";
  for (const std::string bad : {R"(,"namespace":"team","pod":"../x")", R"(,"namespace":"a/b","pod":"x")",
                                R"(,"namespace":"team","pod":"")", R"(,"namespace":"team","pod":7)"})
    EXPECT_FALSE(with(bad)) << bad;
}

TEST_F(LimitSocketTest, AnswersOneLine) {
  open();
  struct stat status{};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  ASSERT_EQ(::stat((root + "/run").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700u);
  const auto client = connect();
  send_text(client, request_line().substr(0, 20));
  run_until([&] { return server->connections() == 1; });
  send_text(client, request_line().substr(20));
  EXPECT_EQ(receive_all(client), "{\"allowed\":true}\n");
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0].container_id, kSocketId);
  EXPECT_EQ(requests[0].pid, 7u);
  EXPECT_EQ(requests[0].pod_uid, "uid-a");
  EXPECT_EQ(requests[0].container, "main");
  EXPECT_EQ(requests[0].cgroup, "/a");
  server.reset();
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(LimitSocketTest, ASlowPeerHoldsUpNobody) {
  answer_at_once = false;
  open();
  const auto silent = connect();
  const auto waiting = connect();
  send_text(waiting, request_line());
  ASSERT_TRUE(run_until([&] { return dones.size() == 1; }));
  const auto quick = connect();
  send_text(quick, request_line(std::string(64, 'e')));
  ASSERT_TRUE(run_until([&] { return dones.size() == 2; }));
  dones[1](fail(Code::kUnsupported, "no \xff limits"));
  EXPECT_THAT(receive_all(quick), HasSubstr("{\"allowed\":false,\"reason\":\"no "));
  EXPECT_THAT(receive_all(silent), HasSubstr("no whole request"));
  dones[0]({});
  EXPECT_EQ(receive_all(waiting), "{\"allowed\":true}\n");
  EXPECT_EQ(server->connections(), 0u);
}

TEST_F(LimitSocketTest, RefusesWhatIsNoRequest) {
  open();
  for (const std::string& line :
       {std::string("\n"), std::string("{}\n"), std::string("[1]\n"), request_line("../../etc/passwd"),
        request_line(std::string(64, 'X')), std::string(kMaxLimitRequestBytes + 4096, '[')}) {
    const auto client = connect();
    send_text(client, line);
    EXPECT_THAT(receive_all(client), HasSubstr("{\"allowed\":false,\"reason\":\"the request "))
        << line.substr(0, 40);
  }
  EXPECT_TRUE(requests.empty());
}

TEST_F(LimitSocketTest, AnswersNoOtherUser) {
  open(::getuid() + 1);
  const auto client = connect();
  send_text(client, request_line());
  EXPECT_EQ(receive_all(client), "");
  EXPECT_TRUE(requests.empty());
}

TEST_F(LimitSocketTest, ConnectionsAreBounded) {
  open();
  std::vector<FileDescriptor> silent;
  for (std::size_t i = 0; i < kMaxLimitConnections; ++i) {
    silent.push_back(connect());
    ASSERT_TRUE(run_until([&] { return server->connections() == i + 1; }));
  }
  EXPECT_EQ(receive_all(connect()), "");
  silent.clear();
  ASSERT_TRUE(run_until([&] { return server->connections() == 0; }));
  const auto client = connect();
  send_text(client, request_line());
  EXPECT_EQ(receive_all(client), "{\"allowed\":true}\n");
}

TEST_F(LimitSocketTest, LeavesTheSocketOfTheNextAgent) {
  open();
  auto old = std::move(server);
  open();
  old.reset();
  const auto client = connect();
  send_text(client, request_line());
  EXPECT_EQ(receive_all(client), "{\"allowed\":true}\n");
}

// The hook was killed, or the agent's socket closed, while the answer was on its way.
TEST_F(LimitSocketTest, AnAnswerToNobodyIsDropped) {
  answer_at_once = false;
  open();
  {
    const auto client = connect();
    send_text(client, request_line());
    ASSERT_TRUE(run_until([&] { return dones.size() == 1; }));
  }
  dones[0]({});
  const auto client = connect();
  send_text(client, request_line());
  ASSERT_TRUE(run_until([&] { return dones.size() == 2; }));
  server.reset();
  dones[1]({});
  EXPECT_EQ(receive_all(client), "");
}

// A directory in place of cgroup v2.
class ContainerCgroupTest : public LimitSocketTest {
 protected:
  ContainerCgroupTest() : roots{root + "/proc", root + "/cgroup"} {}
  void put(const std::string& file, const std::string& text) {
    ASSERT_TRUE(write_file_atomic(root + "/" + file, text));
  }
  void put_process(const std::string& shown) {
    put("proc/7/cgroup", "4:memory:/kubepods/other\n0::" + shown + "\n");
  }
  std::string error_of(const std::string& runtime_path) {
    const auto found = find_container_cgroup(7, runtime_path, roots);
    return found ? "no error" : found.error().full_message();
  }
  const std::string pod = "0b1d4c8e-1111-2222-3333-444455556666";
  const std::string below =
      "/kubepods-pod0b1d4c8e_1111_2222_3333_444455556666.slice/cri-containerd-" + kSocketId + ".scope";
  const std::string whole = "/kubepods.slice" + below;
  CgroupRoots roots;
};

TEST_F(ContainerCgroupTest, IsTheOneOfTheProcess) {
  put_process(whole);
  EXPECT_THAT(error_of(whole), HasSubstr("is not below " + root + "/cgroup"));
  put("cgroup/unified" + whole + "/cgroup.controllers", "");
  EXPECT_EQ(find_container_cgroup(7, whole, roots)->directory, root + "/cgroup/unified" + whole);
  put("cgroup" + whole + "/cgroup.controllers", "");
  const auto found = find_container_cgroup(7, whole, roots);
  ASSERT_TRUE(found) << found.error().full_message();
  EXPECT_EQ(found->directory, root + "/cgroup" + whole);
  EXPECT_EQ(found->names, (metrics::PodCgroup{pod, kSocketId}));
  EXPECT_EQ(found->pod, root + "/cgroup/kubepods.slice" + below.substr(0, below.rfind('/')));
  // A cgroup of the container's own is below the limited one.
  put_process(whole + "/inner");
  EXPECT_EQ(find_container_cgroup(7, whole + "/inner", roots)->directory, root + "/cgroup" + whole);
}

// containerd without systemd's names: beside the cgroups of other Pods.
TEST_F(ContainerCgroupTest, OfSomeEnginesIsBelowNoPod) {
  const auto path =
      "/system.slice/containerd.service/"
      "kubepods-pod0b1d4c8e_1111_2222_3333_444455556666.slice:cri-containerd:" +
      kSocketId;
  put("cgroup" + path + "/cgroup.controllers", "");
  put_process(path);
  const auto found = find_container_cgroup(7, path, roots);
  ASSERT_TRUE(found) << found.error().full_message();
  EXPECT_EQ(found->directory, root + "/cgroup" + path);
  EXPECT_EQ(found->pod, "");
}

TEST_F(ContainerCgroupTest, ResolvesAPrivateNamespace) {
  put("cgroup" + whole + "/cgroup.controllers", "");
  put_process("/../.." + below);
  const auto found = find_container_cgroup(7, whole, roots);
  ASSERT_TRUE(found) << found.error().full_message();
  EXPECT_EQ(found->directory, root + "/cgroup" + whole);
}

TEST_F(ContainerCgroupTest, RefusesWhatDoesNotAgree) {
  EXPECT_THAT(error_of(whole), HasSubstr("needs hostPID"));
  put("proc/7/cgroup", "4:memory:" + whole + "\n");
  EXPECT_THAT(error_of(whole), HasSubstr("cgroup v2"));
  put_process(whole);
  EXPECT_THAT(error_of(""), HasSubstr("the container runtime says nothing"));
  EXPECT_THAT(error_of("/kubepods.slice/other"),
              HasSubstr("the container runtime says /kubepods.slice/other"));
  EXPECT_THAT(error_of("/x/../kubepods.slice" + below), HasSubstr("the container runtime says"));
  put_process("/..");
  EXPECT_THAT(error_of(whole), HasSubstr("the container runtime says"));
  put_process("/system.slice/sshd.service");
  EXPECT_THAT(error_of("/system.slice/sshd.service"), HasSubstr("in no container of a Pod"));
}

TEST_F(ContainerCgroupTest, ItsEndIsReported) {
  const std::string directory = root + "/cgroup" + whole;
  EXPECT_FALSE(watch_cgroup_end(loop, directory, [] {}));
  const auto write_events = [&](const std::string& text) {
    std::filesystem::create_directories(directory);
    FileDescriptor file(::open((directory + "/cgroup.events").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644));
    ASSERT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  };
  write_events("populated 1\nfrozen 0\n");
  EXPECT_TRUE(has_processes(directory));
  int ended = 0;
  const auto watch = watch_cgroup_end(loop, directory, [&] { ++ended; });
  ASSERT_TRUE(watch);
  write_events("populated 0\nfrozen 0\n");
  EXPECT_TRUE(run_until([&] { return ended > 0; }));
  EXPECT_FALSE(has_processes(directory));
  std::filesystem::remove_all(directory);
  EXPECT_FALSE(has_processes(directory));
}

}  // namespace
}  // namespace gpulet::agent
