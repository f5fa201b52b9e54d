// docs/settings.md is the settings table, written out. CANARY_WRITE_DOCS=1 writes it anew.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/settings.h"

namespace canarynet {
namespace {

std::string page() {
  std::string out =
      "# Settings\n\nEach is an environment variable, or a `\"name=value\"` string of `canary_config.settings`, which "
      "wins. Sizes take B, KiB, MiB, "
      "GiB;\ntimes ns, us, ms, s, min, h. Settings marked *agree* must be equal on all ranks; joining fails and names "
      "the difference.\n"
      "`CANARY_RANK` and `CANARY_WORLD_SIZE` say who this process is, unless `canary_config` does; `CANARY_KERNELS` "
      "(scalar, sse4, avx2, avx512)\n"
      "forces a kernel variant.\n\n"
      "| variable | name | default | | meaning |\n|---|---|---|---|---|\n";
  for (const SettingInfo& s : setting_table()) {
    const std::string value = *s.default_value != '\0' ? "`" + std::string(s.default_value) + "`" : "";
    out += "| `" + std::string(s.environment) + "` | `" + s.name + "` | " + value + " | " +
           (s.must_agree ? "agree" : "") + " | " + s.sentence + " |\n";
  }
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
