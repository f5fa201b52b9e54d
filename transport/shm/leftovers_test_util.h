// transport/shm/leftovers_test_util.h -- for tests: what shared memory must not leave behind in a process.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace canarynet::test {

// Descriptors of this process and files in shared memory, a line each, that have "canary" in their names.
inline std::string descriptors_of_ours() {
  std::string out;
  for (const char* folder : {"/proc/self/fd", "/dev/shm"}) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      const auto target = std::filesystem::read_symlink(entry.path(), error);
      const std::string text = entry.path().string() + " " + (error ? "" : target.string());
      if (text.find("canary") != std::string::npos) out += text + "\n";
    }
  }
  return out;
}

}  // namespace canarynet::test
