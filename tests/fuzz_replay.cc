// tests/fuzz_replay.cc -- main() of a fuzz target in builds without libFuzzer. It gives the target every file of a
// corpus folder, the empty input, and every file cut short at each length up to 4 KiB. One thread; a failure is a crash
// or a sanitizer report.
//
//   x_fuzz FOLDER [FILE...]      the folder may be missing: the empty input always runs
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes);

namespace {

// An exact-size heap block, so that ASan sees a read of one byte past the input.
void run(const std::vector<char>& input, std::size_t bytes) {
  const auto copy = std::make_unique<std::uint8_t[]>(bytes);
  std::copy_n(input.begin(), bytes, copy.get());
  LLVMFuzzerTestOneInput(copy.get(), bytes);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    std::error_code error;
    if (!std::filesystem::is_directory(argv[i], error)) {
      if (std::filesystem::exists(argv[i], error)) files.emplace_back(argv[i]);
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  run({}, 0);
  for (const auto& path : files) {
    std::ifstream stream(path, std::ios::binary);
    const std::vector<char> input{std::istreambuf_iterator<char>(stream), {}};
    std::printf("%s: %zu bytes\n", path.c_str(), input.size());
    std::fflush(stdout);  // so that the input is named if the next line crashes
    run(input, input.size());
    for (std::size_t bytes = 1; bytes < std::min<std::size_t>(input.size(), 4096); ++bytes) run(input, bytes);
  }
  std::printf("%zu inputs replayed\n", files.size());
  return 0;
}
