// One rank of bench/shm_kill.py: joins job after job within one process, exchanges until a peer dies, and says what is
// left over.
//
// Lines in:
//   job join=URL rank=R ranks=N seed=S limit=BYTES wait=TIME    S and limit are alike on all ranks; wait: how long to
//         wait for ranks that do not join
//   quit
// Lines out:
//   rest fds=N names=N maps=N mapped=BYTES heap=BYTES resident=BYTES threads=N    at start and after each job;
//         resident: anonymous memory
//   joined
//   ended at=NS code=NAME rank=R ops=N shm=BYTES other=BYTES message=TEXT    at: CLOCK_MONOTONIC as the error came;
//         shm, other: bytes that went out to peers
//   wrong TEXT    a result that is not exact
//   left TEXT     after rest: a descriptor, or a mapping of a memfd, that is still there
//
// Every rank runs the same sequence: one to three all-reduces at a time of 4 bytes to `limit`, sizes drawn evenly by
// magnitude. Each rank chooses by itself which of its buffers are the library's memory and which ordinary, which
// operations are in place, and whether it frees that memory before it finalizes.
#include <dirent.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "canarynet/canarynet.h"

namespace {

constexpr int kTogether = 3;

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {  // splitmix64
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }

 private:
  std::uint64_t state_;
};

// A line leaves at once and whole, since the process may be killed right after it.
void say(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(STDOUT_FILENO, text.data(), text.size()) != static_cast<ssize_t>(text.size())) _exit(4);
}

// --- leftovers -------------------------------------------------------------------------------------------------------

std::vector<std::string> descriptors() {
  std::vector<std::string> out;
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) std::exit(3);
  while (const dirent* entry = ::readdir(folder)) {
    if (entry->d_name[0] == '.' || std::atoi(entry->d_name) == ::dirfd(folder)) continue;
    char target[256] = {};
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    if (::readlink(path.c_str(), target, sizeof target - 1) < 0) std::strcpy(target, "?");
    out.push_back(std::string(entry->d_name) + " " + target);
  }
  ::closedir(folder);
  return out;
}

void say_rest() {
  ::malloc_trim(0);
  const auto open = descriptors();
  std::size_t maps = 0, mapped = 0;
  std::vector<std::string> ours;
  std::ifstream in("/proc/self/maps");
  for (std::string line; std::getline(in, line); ++maps) {
    std::size_t from = 0, to = 0;
    std::sscanf(line.c_str(), "%zx-%zx", &from, &to);
    if (line.find("[heap]") == std::string::npos) mapped += to - from;  // the heap is counted by what is in use
    if (line.find("memfd:") != std::string::npos) ours.push_back(line);
  }
  std::size_t pages = 0, resident = 0, shared = 0, threads = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident >> shared;
  // Pages of files do not count: the kernel maps up to 64 KiB around the first call of a function not needed before.
  resident -= shared;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "Threads:") status >> threads;
  }
  const auto heap = ::mallinfo2();
  std::ostringstream out;
  out << "rest fds=" << open.size() << " names=" << ours.size() << " maps=" << maps << " mapped=" << mapped
      << " heap=" << heap.uordblks + heap.hblkhd
      << " resident=" << resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) << " threads=" << threads;
  say(out.str());
  for (const std::string& line : ours) say("left " + line);
  for (const std::string& line : open) {
    if (std::atoi(line.c_str()) > STDERR_FILENO) say("left " + line);
  }
}

// --- a job -----------------------------------------------------------------------------------------------------------

struct Task {
  std::string join, wait;
  int rank = 0, ranks = 1;
  std::uint64_t seed = 0;
  std::size_t limit = 4;
};

// Input and output of one of the operations under way.
struct Buffer {
  std::uint32_t* words = nullptr;
  std::unique_ptr<std::uint32_t[]> ordinary;
  void* arena = nullptr;
};

struct Call {
  std::size_t count = 0;
  std::uint32_t number = 0;
  std::uint32_t* output = nullptr;
  canary_op* op = nullptr;
};

class Rank {
 public:
  explicit Rank(Task task)
      : task_(std::move(task)),
        shared_(task_.seed),
        own_(task_.seed * 64 + static_cast<std::uint64_t>(task_.rank) + 1) {}

  void run() {
    canary_config config = CANARY_CONFIG_INIT;
    config.join = task_.join.c_str();
    config.rank = task_.rank;
    config.world_size = task_.ranks;
    const std::string wait = "join_timeout=" + task_.wait;
    const char* const settings[] = {wait.c_str()};
    config.settings = settings;
    config.settings_count = 1;
    if (const canary_status status = canary_init(&config, &context_); status != CANARY_OK) return say_ended(status);
    say("joined");
    for (Buffer& buffer : buffers_) allocate(buffer);
    canary_status status = CANARY_OK;
    while (status == CANARY_OK) status = exchange();
    say_ended(status);
    if (own_.below(2) == 0) {
      for (const Buffer& buffer : buffers_) {
        if (canary_mem_free(context_, buffer.arena) != CANARY_OK) say("wrong canary_mem_free");
      }
    }
    if (canary_finalize(context_) != CANARY_OK) say("wrong canary_finalize");
  }

 private:
  void allocate(Buffer& buffer) {
    const std::size_t words = 2 * task_.limit / sizeof(std::uint32_t);
    if (own_.below(2) == 0) {
      if (canary_mem_alloc(context_, words * sizeof(std::uint32_t), &buffer.arena) != CANARY_OK)
        say("wrong canary_mem_alloc");
      buffer.words = static_cast<std::uint32_t*>(buffer.arena);
    } else {
      buffer.ordinary.reset(new std::uint32_t[words]);
      buffer.words = buffer.ordinary.get();
    }
  }

  // Runs one to three operations at once; returns the first failure, told with its moment.
  canary_status exchange() {
    Call calls[kTogether];
    const std::size_t together = 1 + shared_.below(kTogether);
    canary_status failed = CANARY_OK;
    for (std::size_t i = 0; i < together; ++i) {
      Call& call = calls[i];
      call.number = ++called_;
      call.count = std::max<std::size_t>(1, (task_.limit / sizeof(std::uint32_t)) >> shared_.below(20));
      std::uint32_t* input = buffers_[i].words;
      call.output = own_.below(2) == 0 ? input : input + task_.limit / sizeof(std::uint32_t);
      for (std::size_t w = 0; w < call.count; ++w)
        input[w] = value(call, w) * static_cast<std::uint32_t>(task_.rank + 1);
      const canary_status status =
          canary_all_reduce(canary_world(context_), input, call.output, call.count, CANARY_I32, CANARY_SUM, &call.op);
      note(status, &failed);
    }
    for (std::size_t i = 0; i < together; ++i) {
      Call& call = calls[i];
      if (call.op == nullptr) continue;
      const canary_status status = canary_op_wait(call.op);
      note(status, &failed);
      if (status == CANARY_OK) check(call);
      done_ += status == CANARY_OK;
    }
    return failed;
  }

  static std::uint32_t value(const Call& call, std::size_t word) {
    return static_cast<std::uint32_t>(word) * 2654435761u + call.number;
  }

  void check(const Call& call) const {
    const auto factor = static_cast<std::uint32_t>(task_.ranks * (task_.ranks + 1) / 2);
    for (std::size_t w = 0; w < call.count; ++w) {
      if (call.output[w] == value(call, w) * factor) continue;
      return say("wrong all_reduce #" + std::to_string(call.number) + " of " + std::to_string(call.count) +
                 " words, at word " + std::to_string(w));
    }
  }

  // Notes the error of the first call that failed, and when it came.
  void note(canary_status status, canary_status* failed) {
    if (status == CANARY_OK || *failed != CANARY_OK) return;
    *failed = status;
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    failed_at_ = now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
    describe();
  }

  void describe() {
    canary_error error{};
    error.struct_size = sizeof error;
    canary_last_error(&error);
    culprit_ = error.rank;
    message_ = error.message;
  }

  void say_ended(canary_status status) {
    if (context_ == nullptr) note(status, &join_failed_);
    std::uint64_t shm = 0, other = 0;
    count_sent(&shm, &other);
    std::ostringstream out;
    out << "ended at=" << failed_at_ << " code=" << canary_status_name(status) << " rank=" << culprit_
        << " ops=" << done_ << " shm=" << shm << " other=" << other << " message=" << message_;
    say(out.str());
  }

  // Counts the bytes that went out to peers, by transport.
  void count_sent(std::uint64_t* shm, std::uint64_t* other) const {
    if (context_ == nullptr) return;
    canary_nic_stats nics[16];
    std::size_t count = 0;
    if (canary_stats(context_, nics, 16, &count) != CANARY_OK) return;
    for (std::size_t i = 0; i < std::min<std::size_t>(count, 16); ++i) {
      (std::strcmp(nics[i].device, "shm") == 0 ? *shm : *other) += nics[i].transmit_bytes;
    }
  }

  Task task_;
  Random shared_, own_;
  canary_context* context_ = nullptr;
  Buffer buffers_[kTogether];
  std::uint32_t called_ = 0, done_ = 0;
  std::int64_t failed_at_ = 0;
  canary_status join_failed_ = CANARY_OK;
  int culprit_ = -1;
  std::string message_;
};

}  // namespace

int main() {
  // There is one pool of memory, whose use can be counted, and large blocks go back when they are freed.
  ::mallopt(M_ARENA_MAX, 1);
  ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
  std::cin.sync_with_stdio(false);
  say_rest();
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string verb, word;
    words >> verb;
    if (verb == "quit") return 0;
    Task task;
    while (words >> word) {
      const std::size_t at = word.find('=');
      const std::string name = word.substr(0, at), text = at == std::string::npos ? "" : word.substr(at + 1);
      const auto number = static_cast<std::uint64_t>(std::strtoull(text.c_str(), nullptr, 10));
      if (name == "join")
        task.join = text;
      else if (name == "wait")
        task.wait = text;
      else if (name == "rank")
        task.rank = static_cast<int>(number);
      else if (name == "ranks")
        task.ranks = static_cast<int>(number);
      else if (name == "seed")
        task.seed = number;
      else if (name == "limit")
        task.limit = static_cast<std::size_t>(number);
      else
        return 2;
    }
    if (verb != "job" || task.join.empty()) return 2;
    ::alarm(60);  // a rank that hangs does not outlive its bench
    Rank(std::move(task)).run();
    ::alarm(0);
    say_rest();
  }
  return 0;
}
