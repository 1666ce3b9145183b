#include "agent/node/capabilities.h"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/process.h"

namespace gpulet::agent {
namespace {

TEST(Capabilities, NamesAreThoseOfKubernetes) {
  EXPECT_EQ(parse_capability("CHOWN").value(), CAP_CHOWN);
  EXPECT_EQ(parse_capability("SYS_ADMIN").value(), CAP_SYS_ADMIN);
  EXPECT_EQ(parse_capability("CAP_MKNOD").value(), CAP_MKNOD);
  EXPECT_EQ(parse_capability("SYSLOG").value(), CAP_SYSLOG);
  EXPECT_EQ(parse_capability("CHECKPOINT_RESTORE").value(), CAP_CHECKPOINT_RESTORE);
  EXPECT_EQ(parse_capabilities(" SETUID, SETGID,").value(), (std::set<int>{CAP_SETUID, CAP_SETGID}));
  EXPECT_TRUE(parse_capabilities("").value().empty());
  for (const char* wrong : {"sys_admin", "ALL", "CAP_", "SYS_ADMIN SETUID"}) {
    const auto parsed = parse_capabilities(wrong);
    ASSERT_FALSE(parsed) << wrong;
    EXPECT_EQ(parsed.error().code(), Code::kInvalidArgument);
    EXPECT_EQ(parsed.error().subject(), wrong);
  }
}

// Returns what `check` returns in a process of its own that kept these.
int in_child(const std::set<int>& kept, int (*check)()) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(keep_capabilities(kept) ? check() : 99);
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 98;
  return WEXITSTATUS(status);
}

TEST(Capabilities, WhatIsNotKeptIsGoneForGood) {
  if (!has_capability(CAP_SETPCAP)) GTEST_SKIP() << "needs CAP_SETPCAP";
  EXPECT_EQ(in_child({CAP_SETUID, CAP_SYSLOG},
                     [] {
                       if (has_capability(CAP_SYS_ADMIN) || has_capability(CAP_MKNOD)) return 1;
                       if (!has_capability(CAP_SETUID) || !has_capability(CAP_SYSLOG)) return 2;
                       if (::prctl(PR_CAPBSET_READ, CAP_SYS_ADMIN, 0, 0, 0) != 0) return 3;
                       return ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? 0 : 4;
                     }),
            0);
}

TEST(Capabilities, NoneIsAdded) {
  EXPECT_EQ(in_child({},
                     [] {
                       if (!keep_capabilities({CAP_SYS_ADMIN})) return 1;
                       return has_capability(CAP_SYS_ADMIN) ? 2 : 0;
                     }),
            0);
}

}  // namespace
}  // namespace gpulet::agent
