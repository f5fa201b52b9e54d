// docs/settings.md must be the settings table, written out. CANARY_WRITE_DOCS=1 writes it anew.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/log.h"
#include "base/settings.h"

namespace canarynet {
namespace {

std::string page() {
  std::string out = R"(# Settings

Each is an environment variable, or a `"name=value"` string of `canary_config.settings`, which wins. Sizes take B, KiB,
MiB, GiB; times ns, us, ms, s, min, h. Settings marked *agree* must be equal on all ranks; joining fails and names the
difference. `CANARY_RANK` and `CANARY_WORLD_SIZE` say who this process is, unless `canary_config` does; `CANARY_KERNELS`
(scalar, sse4, avx2, avx512) forces a kernel variant; `CANARY_LOG` turns the log on (below).

A value that can't be used ends `canary_init` with `CANARY_INVALID_SETTING`, which names the variable, the value and
what it takes, and so do two values that contradict each other, such as a silence limit below three heartbeats. A
`CANARY_*` variable that nothing reads is warned of in the log, with the name that was probably meant; the tools say it
on stderr.

| variable | name | default | | meaning |
|---|---|---|---|---|
)";
  for (const SettingInfo& s : setting_table()) {
    const std::string value = *s.default_value != '\0' ? "`" + std::string(s.default_value) + "`" : "";
    out += "| `" + std::string(s.environment) + "` | `" + s.name + "` | " + value + " | " +
           (s.must_agree ? "agree" : "") + " | " + s.sentence + " |\n";
  }
  out += R"(
## Logs

The library prints nothing of its own accord. `CANARY_LOG=LEVEL` sends its lines to stderr, `CANARY_LOG=LEVEL,FILE`
appends them to a file, which is created with mode 0600; `%p` in its name stands for the process id. A file that can't
be opened is an error of `canary_init`. Each line is one write of time (UTC), pid, ranks and level, so that all ranks of
a host may share a file:

    2026-01-31T12:00:00.123456Z canary pid 4711 rank 3 info: ...

| level | what it tells |
|---|---|
| `warn` | what a user should look at: misspelt variables, strangers that were turned away, connections that stall, hosts that are silent or heard again, groups that ended |
| `info` | also which path goes up or down, and why; what the kernel refused and what is used instead |
| `debug` | also which algorithm runs for each shape of an operation, when first used; who joined; the share of each lane when it changes |

At most )" +
         std::to_string(kLogLinesPerSecond) +
         R"( lines are written in a second; the next one says how many were left out. Nothing is logged per piece. A
callback set by `canary_set_log` gets the same lines at its own level, whatever `CANARY_LOG` says, and so does NCCL's
logger in the plugin.
)";
  return out;
}

TEST(SettingsPage, IsTheTable) {
  const std::string path = std::string(CANARY_SOURCE_DIR) + "/docs/settings.md";
  if (std::getenv("CANARY_WRITE_DOCS") != nullptr) std::ofstream(path) << page();
  std::stringstream found;
  found << std::ifstream(path).rdbuf();
  EXPECT_EQ(found.str(), page()) << "write it anew: CANARY_WRITE_DOCS=1 settings_doc_test";
}

}  // namespace
}  // namespace canarynet
