#include "hook/limit_memory.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/socket.h>

#include "base/file.h"
#include "hook/command.h"
#include "hook/test_image.h"

namespace gpulet::hook {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string kContainerId(64, 'a');

std::string state_with(const std::string& annotations, const std::string& pid = "77") {
  return R"({"ociVersion":"1.2.0","id":")" + kContainerId + R"(","status":"creating","pid":)" + pid +
         R"(,"bundle":"/none","annotations":{)" + annotations + "}}";
}
const std::string kOfContainerd =
    R"("io.kubernetes.cri.sandbox-uid":"pod-1","io.kubernetes.cri.container-name":"main")";

// A process that accepts one connection, and answers its first line by `respond`: "" closes without one.
class TestAgent {
 public:
  TestAgent(const std::string& socket, const std::function<std::string(const std::string&)>& respond) {
    auto listening = bind_unix_socket(socket);
    if (!listening || !start_listening(*listening, socket)) std::abort();
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    seen_ = FileDescriptor(ends[0]);
    process_ = ::fork();
    if (process_ == 0) {
      ::fcntl(listening->get(), F_SETFL, 0);
      const int client = ::accept(listening->get(), nullptr, nullptr);
      std::string line;
      for (char c = 0; c != '\n' && ::read(client, &c, 1) == 1;) line += c;
      if (::write(ends[1], line.data(), line.size()) < 0) ::_exit(1);
      const std::string answer = respond(line);
      if (::send(client, answer.data(), answer.size(), MSG_NOSIGNAL) < 0) ::_exit(1);
      ::_exit(0);
    }
    ::close(ends[1]);
  }
  ~TestAgent() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  TestAgent(const TestAgent&) = delete;
  // Blocks until the process has ended or `respond` was called.
  std::string request() const { return read_all(seen_.get(), "request").value_or(""); }

 private:
  FileDescriptor seen_;
  pid_t process_ = 0;
};

class LimitMemoryTest : public testing::Test {
 protected:
  LimitMemoryTest() {
    EXPECT_TRUE(write_file_atomic(proc() + "/77/cgroup", "1:name=systemd:/other\n0::/kubepods/x\"y\n"));
  }
  std::string socket() const { return image_.base_directory() / "agent.sock"; }
  std::string proc() const { return image_.base_directory() / "proc"; }
  HookRun run(const std::string& state, const std::string& wait = "5s") const {
    return image_.run_hook_with_state(
        state, {"limit-memory", "--socket", socket(), "--timeout", wait, "--host-proc", proc()},
        {"io.kubernetes.cri.container-name=forged"});
  }

  TestImage image_;
};

TEST_F(LimitMemoryTest, StartsTheContainerOnAYesOnly) {
  {
    const TestAgent agent(socket(), [](const std::string&) { return "{\"allowed\":true}\n"; });
    const auto ran = run(state_with(kOfContainerd));
    EXPECT_EQ(ran.status, 0) << ran.error_output;
    EXPECT_EQ(ran.error_output, "");
    EXPECT_EQ(agent.request(), R"({"version":1,"id":")" + kContainerId +
                                   R"(","pid":77,"podUID":"pod-1","container":"main",)" +
                                   R"("cgroup":"/kubepods/x\"y"})" + "\n");
  }
  for (const std::string answer :
       {"{\"allowed\":false,\"reason\":\"GPU-0 has no\\u001b room\"}\n", "{}\n", "{\"allowed\":null}\n",
        "{\"allowed\":\"true\"}\n", "yes\n", "{\"allowed\":true} {}\n", "{\"allowed\":true}", "", "\n"}) {
    const TestAgent agent(socket(), [&](const std::string&) { return answer; });
    const auto ran = run(state_with(kOfContainerd), answer.ends_with('\n') ? "5s" : "300ms");
    EXPECT_EQ(ran.status, 1) << answer;
    EXPECT_THAT(ran.error_output, HasSubstr("gpulet-hook: limit-memory: ")) << answer;
    EXPECT_EQ(std::ranges::count(ran.error_output, '\n'), 1) << answer;
    if (answer.find("room") != std::string::npos) {
      EXPECT_THAT(ran.error_output,
                  AllOf(HasSubstr("no memory limit: GPU-0 has no"), Not(HasSubstr("\x1b"))));
    }
  }
}

TEST_F(LimitMemoryTest, NamesThePodWhereTheRuntimeDoes) {
  for (const std::string of_runtime :
       {R"("io.kubernetes.cri.sandbox-namespace":"team","io.kubernetes.cri.sandbox-name":"train-0")",
        R"("io.kubernetes.pod.namespace":"team","io.kubernetes.pod.name":"train-0")"}) {
    const TestAgent agent(socket(), [](const std::string&) { return "{\"allowed\":true}\n"; });
    EXPECT_EQ(run(state_with(std::string(kOfContainerd) + "," + of_runtime)).status, 0);
    EXPECT_THAT(agent.request(), HasSubstr(R"(,"namespace":"team","pod":"train-0"})"));
  }
  for (const std::string half : {R"("io.kubernetes.pod.name":"train-0")",
                                 R"("io.kubernetes.pod.namespace":"a b","io.kubernetes.pod.name":"x")"}) {
    const TestAgent agent(socket(), [](const std::string&) { return "{\"allowed\":true}\n"; });
    EXPECT_EQ(run(state_with(std::string(kOfContainerd) + "," + half)).status, 0);
    EXPECT_THAT(agent.request(), Not(HasSubstr("namespace")));
  }
}

TEST_F(LimitMemoryTest, RefusesWithoutAnAgent) {
  const auto ran = run(state_with(kOfContainerd), "300ms");
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.error_output, AllOf(HasSubstr("no agent answers"), HasSubstr(socket())));
}

TEST_F(LimitMemoryTest, RefusesWhenTheAgentIsKilled) {
  const TestAgent agent(socket(), [](const std::string&) {
    ::raise(SIGKILL);
    return "";
  });
  const auto ran = run(state_with(kOfContainerd), "300ms");
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.error_output, HasSubstr("no agent answers"));
}

TEST_F(LimitMemoryTest, AsksTheAgentThatComesAfterOneThatEnds) {
  const TestAgent first(socket(), [this](const std::string&) {
    constexpr int kKept = 200;  // no descriptor has so high a number
    const auto next = bind_unix_socket(socket());
    if (!next || !start_listening(*next, socket()) || ::dup2(next->get(), kKept) < 0) ::_exit(1);
    if (::fork() != 0) return "";
    ::close_range(3, kKept - 1, 0);
    ::fcntl(kKept, F_SETFL, 0);
    ::alarm(10);
    const int client = ::accept(kKept, nullptr, nullptr);
    for (char c = 0; c != '\n' && ::read(client, &c, 1) == 1;) {
    }
    const std::string yes = "{\"allowed\":true}\n";
    ::_exit(::send(client, yes.data(), yes.size(), MSG_NOSIGNAL) < 0 ? 1 : 0);
  });
  const auto ran = run(state_with(kOfContainerd));
  EXPECT_EQ(ran.status, 0) << ran.error_output;
}

TEST_F(LimitMemoryTest, RefusesWhenTheAgentIsLate) {
  const TestAgent agent(socket(), [](const std::string&) {
    ::pause();
    return "";
  });
  const auto ran = run(state_with(kOfContainerd), "300ms");
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.error_output, HasSubstr("has not answered within 300ms"));
}

TEST_F(LimitMemoryTest, AnAnswerWithoutAnEndIsBounded) {
  const TestAgent agent(socket(), [](const std::string&) { return std::string(64 << 10, ' '); });
  EXPECT_THAT(run(state_with(kOfContainerd)).error_output, HasSubstr("too long"));
}

TEST_F(LimitMemoryTest, AsksNothingForAStateThatNamesNoContainer) {
  for (const auto& [state, problem] : {
           std::pair{state_with(""), "Pod's UID (io.kubernetes.cri.sandbox-uid) is missing"},
           {state_with(R"("io.kubernetes.cri.sandbox-uid":"pod-1")"), "container-name) is missing"},
           {state_with(kOfContainerd, "0"), "pid of its first process is missing"},
           {state_with(kOfContainerd, "-3"), ""},
           {state_with(R"("io.kubernetes.pod.uid":"a/../b","io.kubernetes.container.name":"main")"),
            "is not a name: 'a/../b'"},
           {std::string("{"), ""},
           {std::string(2u << 20, ' '), ""},
       }) {
    const auto ran = run(state);
    EXPECT_EQ(ran.status, 1);
    EXPECT_THAT(ran.error_output, HasSubstr("limit-memory: "));
    EXPECT_THAT(ran.error_output, HasSubstr(problem));
    EXPECT_THAT(ran.error_output, Not(HasSubstr("no agent answers"))) << "it asked";
  }
  EXPECT_THAT(run(state_with(kOfContainerd, "78")).error_output, HasSubstr("/78/cgroup"));
}

TEST(NamedContainerTest, IsNamedByTheRuntimeOnly) {
  const auto named = parse_named_container(
      state_with(R"("io.kubernetes.pod.uid":"pod-2","io.kubernetes.container.name":"side","x":{"y":[1]})"));
  ASSERT_TRUE(named);
  EXPECT_EQ(named->pod_uid, "pod-2");
  EXPECT_EQ(named->name, "side");
  EXPECT_EQ(named->pid, 77u);
  // A Pod's author adds the annotation of the other runtime.
  const auto forged =
      parse_named_container(state_with(kOfContainerd + R"(,"io.kubernetes.container.name":"big")"));
  ASSERT_FALSE(forged);
  EXPECT_THAT(forged.error().message(), AllOf(HasSubstr("'big'"), HasSubstr("'main'")));
}

TEST(LimitMemoryCommand, IsACommandOfItsOwn) {
  const auto parsed = parse_command({"gpulet-hook", "limit-memory", "--socket=/run/a.sock"});
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->steps, std::vector{Step::kLimitMemory});
  EXPECT_EQ(parsed->answer_wait, kLimitWait);
  EXPECT_GT(command_time_limit(*parsed), kLimitWait) << "it ends by itself, with a reason";
  EXPECT_FALSE(describe_overrun(*parsed, 1).may_start);
  EXPECT_EQ(std::ranges::count(parse_command({"h", "create-container"})->steps, Step::kLimitMemory), 0);
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"h", "limit-memory"},
                                                {"h", "limit-memory", "--socket", "agent.sock"},
                                                {"h", "limit-memory", "--socket=/a", "--timeout=0s"},
                                                {"h", "limit-memory", "--socket=/a", "--timeout=2m"},
                                                {"h", "limit-memory", "--socket=/a", "--timeout=soon"}})
    EXPECT_FALSE(parse_command(wrong)) << wrong.back();
}

}  // namespace
}  // namespace gpulet::hook
