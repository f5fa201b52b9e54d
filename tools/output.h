// tools/output.h -- where a tool's results go.
#pragma once

#include <cstdio>
#include <fstream>
#include <string>

namespace canarynet::tools {

// Writes the text to the file, or to standard output for "-". On failure it says so on stderr and returns false.
inline bool write_output(const char* tool, const std::string& path, const std::string& text) {
  if (path == "-") return std::fputs(text.c_str(), stdout) >= 0;
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) std::fprintf(stderr, "%s: %s: can't be written\n", tool, path.c_str());
  return static_cast<bool>(file);
}

}  // namespace canarynet::tools
