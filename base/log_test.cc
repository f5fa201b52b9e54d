// Tests of CANARY_LOG. The callback's tests are in base_test.cc.
#include "base/log.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <thread>

namespace canarynet {
namespace {

class LogFile : public testing::Test {
 protected:
  void SetUp() override {
    char made[] = "/tmp/canary-log.XXXXXX";
    ASSERT_NE(mkdtemp(made), nullptr);
    folder_ = made;
  }
  void TearDown() override {
    EXPECT_TRUE(write_log_to("").ok());
    set_log_ranks(-1, -1);
    std::filesystem::remove_all(folder_);
  }
  std::string path(const char* name = "log") const { return folder_ + "/" + name; }
  std::vector<std::string> lines(const char* name = "log") const {
    std::ifstream file(path(name));
    std::vector<std::string> out;
    for (std::string line; std::getline(file, line);) out.push_back(line);
    return out;
  }
  std::string folder_;
};

TEST_F(LogFile, ALineHasTimePidRankAndLevel) {
  ASSERT_TRUE(write_log_to("info," + path()).ok());
  log(LogLevel::kWarn, "before %d", 1);
  set_log_ranks(3, 3);
  log(LogLevel::kInfo, "one");
  set_log_ranks(0, 7);
  log(LogLevel::kInfo, "eight");
  log(LogLevel::kDebug, "too much");
  const std::string head = R"(^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z canary pid )" + std::to_string(getpid());
  const auto got = lines();
  ASSERT_EQ(got.size(), 3u);
  EXPECT_TRUE(std::regex_match(got[0], std::regex(head + " warn: before 1"))) << got[0];
  EXPECT_TRUE(std::regex_match(got[1], std::regex(head + " rank 3 info: one"))) << got[1];
  EXPECT_TRUE(std::regex_match(got[2], std::regex(head + " ranks 0-7 info: eight"))) << got[2];
}

TEST_F(LogFile, LevelsAreWarnInfoAndDebug) {
  const struct {
    const char* text;
    bool info, debug;
  } cases[] = {{"warn", false, false}, {"info", true, false}, {"debug", true, true}};
  for (const auto& c : cases) {
    ASSERT_TRUE(write_log_to(std::string(c.text) + "," + path()).ok());
    EXPECT_TRUE(log_enabled(LogLevel::kWarn)) << c.text;
    EXPECT_EQ(log_enabled(LogLevel::kInfo), c.info) << c.text;
    EXPECT_EQ(log_enabled(LogLevel::kDebug), c.debug) << c.text;
  }
  ASSERT_TRUE(write_log_to("").ok());
  EXPECT_FALSE(log_enabled(LogLevel::kError));
  for (const char* text : {"loud", "INFO", ",", "debug,", "2"}) {
    const Status bad = write_log_to(text);
    EXPECT_EQ(bad.code(), CANARY_INVALID_SETTING) << text;
    EXPECT_NE(bad.text().find("CANARY_LOG=\"" + std::string(text) + "\""), std::string::npos) << bad.text();
  }
}

TEST_F(LogFile, AFileIsAppendedToAndItsOwnersAlone) {
  ASSERT_TRUE(write_log_to("warn," + path()).ok());
  log(LogLevel::kWarn, "first");
  ASSERT_TRUE(write_log_to("warn," + path()).ok());
  log(LogLevel::kWarn, "second");
  EXPECT_EQ(lines().size(), 2u);
  struct stat facts {};
  ASSERT_EQ(stat(path().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777u, 0600u);
}

TEST_F(LogFile, AFileThatCannotBeOpenedIsNamed) {
  const Status bad = write_log_to("debug," + folder_ + "/missing/log");
  EXPECT_EQ(bad.code(), CANARY_INVALID_SETTING);
  EXPECT_NE(bad.text().find(folder_ + "/missing/log can't be opened: No such file or directory"), std::string::npos)
      << bad.text();
}

TEST_F(LogFile, NamesMayHoldThePid) {
  ASSERT_TRUE(write_log_to("warn," + path("a%p-%p")).ok());
  log(LogLevel::kWarn, "x");
  const std::string pid = std::to_string(getpid());
  EXPECT_EQ(lines(("a" + pid + "-" + pid).c_str()).size(), 1u);
}

TEST_F(LogFile, TextsOfPeersDoNotMakeLines) {
  ASSERT_TRUE(write_log_to("warn," + path()).ok());
  log(LogLevel::kWarn, "one\ntwo\x1b[2J");
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_NE(lines()[0].find("warn: one two [2J"), std::string::npos) << lines()[0];
}

TEST_F(LogFile, LinesOfThreadsAndForkedChildrenDoNotMix) {
  ASSERT_TRUE(write_log_to("warn," + path()).ok());
  constexpr int kEach = 60, kThreads = 3;
  const auto write_all = [](char letter) {
    for (int i = 0; i < kEach; ++i) log(LogLevel::kWarn, "%s", std::string(300, letter).c_str());
  };
  const pid_t child = fork();
  if (child == 0) {
    write_all('z');
    _exit(0);
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(write_all, static_cast<char>('a' + t));
  for (auto& thread : threads) thread.join();
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  const auto got = lines();
  EXPECT_EQ(got.size(), static_cast<std::size_t>(kEach * (kThreads + 1)));
  int of_child = 0;
  for (const std::string& line : got) {
    const std::string text = line.substr(line.find("warn: ") + 6);
    EXPECT_EQ(text, std::string(300, text[0])) << line;
    of_child += line.find("pid " + std::to_string(child) + " ") != std::string::npos && text[0] == 'z';
  }
  EXPECT_EQ(of_child, kEach);
}

TEST_F(LogFile, AFloodIsCutAndCounted) {
  ASSERT_TRUE(write_log_to("debug," + path()).ok());
  constexpr int kLines = 5 * kLogLinesPerSecond;
  for (int i = 0; i < kLines; ++i) log(LogLevel::kDebug, "line");
  EXPECT_LT(lines().size(), static_cast<std::size_t>(kLines));
  usleep(1'100'000);  // another second
  log(LogLevel::kWarn, "after");
  const auto got = lines();
  ASSERT_GE(got.size(), 2u);
  EXPECT_NE(got[got.size() - 2].find(" lines were left out: more than 500 in a second"), std::string::npos)
      << got[got.size() - 2];
  EXPECT_NE(got.back().find("warn: after"), std::string::npos) << got.back();
}

TEST_F(LogFile, TheCallbackKeepsItsOwnLevel) {
  static int heard;
  heard = 0;
  set_log_sink([](void*, LogLevel, std::string_view) { ++heard; }, nullptr, LogLevel::kWarn);
  ASSERT_TRUE(write_log_to("debug," + path()).ok());
  log(LogLevel::kDebug, "for the file");
  log(LogLevel::kWarn, "for both");
  set_log_sink(nullptr, nullptr, LogLevel::kError);
  EXPECT_EQ(heard, 1);
  EXPECT_EQ(lines().size(), 2u);
}

}  // namespace
}  // namespace canarynet
