#include "daemon/ipc/counters_reader.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <string_view>
#include <utility>

namespace canarynet::ipc {
namespace {

constexpr int kTries = 200;
constexpr std::size_t kTablesPerProcess = 64;
constexpr std::size_t kSequenceWord = offsetof(CountersTable, sequence) / 8;

struct Closer {
  void operator()(DIR* d) const { closedir(d); }
};
using Directory = std::unique_ptr<DIR, Closer>;

struct File {
  explicit File(int its_fd) : fd(its_fd) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd >= 0) close(fd);
  }
  int fd;
};

Status no_table(const std::string& why) { return {CANARY_INVALID_ARGUMENT, "counters: " + why}; }

void copy_words(const std::atomic<std::uint64_t>* from, std::size_t begin, std::size_t end, CountersTable* to) {
  auto* bytes = reinterpret_cast<unsigned char*>(to);
  for (std::size_t at = begin / 8; at < end / 8; ++at) {
    const std::uint64_t word = from[at].load(std::memory_order_acquire);
    std::memcpy(bytes + 8 * at, &word, 8);
  }
}

// Returns false if the table was being written all the time.
bool copy_table(const std::atomic<std::uint64_t>* shared, CountersTable* out) {
  for (int i = 0; i < kTries; ++i) {
    const std::uint64_t before = shared[kSequenceWord].load(std::memory_order_acquire);
    if (before % 2 == 0) {
      copy_words(shared, 0, offsetof(CountersTable, nic), out);
      // Only the rows in use are copied: to look at the others would make the kernel fill in their pages.
      out->for_each_used([&](std::size_t begin, std::size_t end) {
        copy_words(shared, std::max(begin, offsetof(CountersTable, nic)), end, out);
      });
      if (shared[kSequenceWord].load(std::memory_order_relaxed) == before) return true;
    }
    sched_yield();
  }
  return false;
}

int number_of(const char* text) {
  int value = 0;
  for (; *text != '\0'; ++text) {
    if (*text < '0' || *text > '9' || value > 100'000'000) return 0;
    value = value * 10 + (*text - '0');
  }
  return value;
}

// The pid by which the process knows itself, in the innermost namespace that it is in. If the kernel has no pid
// namespaces and so no NSpid, it is the pid here. 0: the process is gone.
long own_pid(const std::string& process) {
  std::ifstream status(process + "/status");
  long here = 0;
  for (std::string line; std::getline(status, line);) {
    const std::size_t last = line.find_last_of(" \t");
    const long number = last == std::string::npos ? 0 : number_of(line.c_str() + last + 1);
    if (line.rfind("Pid:", 0) == 0) here = number;
    if (line.rfind("NSpid:", 0) == 0) return number;
  }
  return here;
}

bool is_called_counters(std::string_view link) {
  constexpr std::string_view kPrefix = "/memfd:";
  if (!link.starts_with(kPrefix)) return false;
  link.remove_prefix(kPrefix.size());
  if (link.ends_with(" (deleted)")) link.remove_suffix(10);
  return link == kCountersName;
}

void scan_process(const std::string& proc, int pid, CountersScan* out) {
  const std::string process = proc + "/" + std::to_string(pid);
  const Directory files(opendir((process + "/fd").c_str()));
  if (!files) {
    out->hidden += errno == EACCES || errno == EPERM;
    return;
  }
  std::set<std::pair<dev_t, ino_t>> seen;  // a descriptor may have duplicates
  long own = -1;
  const auto first = static_cast<std::ptrdiff_t>(out->tables.size());
  while (const dirent* entry = readdir(files.get())) {
    char link[128];
    const ssize_t length = readlinkat(dirfd(files.get()), entry->d_name, link, sizeof link);
    if (length <= 0 || !is_called_counters({link, static_cast<std::size_t>(length)})) continue;
    const auto note = [&](const std::string& why) {
      out->notes.push_back("pid " + std::to_string(pid) + ", descriptor " + entry->d_name + ": " + why);
    };
    const File memory(openat(dirfd(files.get()), entry->d_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat about {};
    if (memory.fd < 0 || fstat(memory.fd, &about) != 0) {
      if (errno != ENOENT && errno != ESRCH) note(system_error("counters", errno).text());
      continue;
    }
    if (!seen.insert({about.st_dev, about.st_ino}).second) continue;
    if (seen.size() > kTablesPerProcess) return note("more than " + std::to_string(kTablesPerProcess) + " tables");
    auto table = std::make_unique<CountersTable>();
    if (Status s = read_counters(memory.fd, table.get()); !s.ok()) {
      note(s.text());
      continue;
    }
    if (own < 0) own = own_pid(process);
    if (table->pid != own) continue;  // a parent's, inherited by fork()
    out->tables.push_back({pid, std::move(table)});
  }
  std::sort(out->tables.begin() + first, out->tables.end(), [](const ScannedTable& a, const ScannedTable& b) {
    return std::pair(a.table->number, a.table->started_ns) < std::pair(b.table->number, b.table->started_ns);
  });
}

}  // namespace

Status read_counters(int memory, CountersTable* out) {
  struct stat about {};
  if (fstat(memory, &about) != 0) return system_error("counters: fstat", errno);
  if (!S_ISREG(about.st_mode)) return no_table("it is no memory");
  const auto bytes = static_cast<std::size_t>(about.st_size);
  // Another version may have another size, so the reason in the front is the better one.
  std::memset(static_cast<void*>(out), 0, offsetof(CountersTable, nic));  // rows are copied as far as they are in use
  const std::size_t front = std::min(bytes, offsetof(CountersTable, started_ns));
  if (pread(memory, out, front, 0) != static_cast<ssize_t>(front)) return no_table("it can't be read");
  if (bytes < sizeof *out || out->magic != kCountersMagic || out->version != kCountersVersion) {
    const std::string why = validate(*out, bytes);
    return no_table(why.empty() ? "it has " + std::to_string(bytes) + " bytes" : why);
  }
  const int seals = fcntl(memory, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return no_table("it could shrink while it is read: it is not sealed");
  void* at = mmap(nullptr, sizeof *out, PROT_READ, MAP_SHARED, memory, 0);
  if (at == MAP_FAILED) return system_error("counters: mmap", errno);
  const bool whole = copy_table(static_cast<const std::atomic<std::uint64_t>*>(at), out);
  munmap(at, sizeof *out);
  if (!whole) return no_table("it is being written and never finished: is the process stopped?");
  const std::string why = validate(*out, bytes);
  return why.empty() ? Status() : no_table(why);
}

Result<CountersScan> scan_counters(int only_pid, const std::string& proc) {
  CountersScan out;
  if (only_pid != 0) {
    scan_process(proc, only_pid, &out);
    return out;
  }
  const Directory processes(opendir(proc.c_str()));
  if (!processes) return system_error(proc, errno);
  std::vector<int> pids;
  while (const dirent* entry = readdir(processes.get())) {
    if (const int pid = number_of(entry->d_name); pid > 0) pids.push_back(pid);
  }
  std::sort(pids.begin(), pids.end());
  for (const int pid : pids) scan_process(proc, pid, &out);
  return out;
}

}  // namespace canarynet::ipc
