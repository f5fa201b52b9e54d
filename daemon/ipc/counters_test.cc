// Counters in shared memory: a written table is found and read whole; one that is foreign, torn or another process's is
// named or passed over.
#include "daemon/ipc/counters.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <thread>

#include "daemon/ipc/counters_reader.h"
#include "daemon/ipc/counters_writer.h"

namespace canarynet::ipc {
namespace {

// A process that does something and then waits for its end.
class Child {
 public:
  explicit Child(const std::function<void()>& body) {
    int ends[2];
    if (pipe(ends) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      alarm(60);
      body();
      [[maybe_unused]] const ssize_t n = write(ends[1], "x", 1);
      for (;;) pause();
    }
    close(ends[1]);
    char ready = 0;
    EXPECT_EQ(read(ends[0], &ready, 1), 1) << "it ended early";
    close(ends[0]);
  }
  Child(const Child&) = delete;
  ~Child() { kill(); }
  int pid() const { return pid_; }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  int pid_ = -1;
};

void fill(CountersTable* t) {
  t->role = Role::kRank;
  t->rank = 3;
  t->world_size = 8;
  put_label(t->host, "host-a");
  t->nics = 2;
  put_label(t->nic[0].device, "eth0");
  put_label(t->nic[0].transport, "tcp");
  put_label(t->nic[1].device, "shm");
  t->nic[1].at(NicMetric::kReceiveBytes) = 77;
  t->links = 1;
  t->link[0].nic = 1;
  put_label(t->link[0].peer, "rank 4");
  t->link[0].at(LinkMetric::kSmoothedRtt) = 1234;
  t->at(ProcessMetric::kMessagesSent) = 5;
  t->choices = 1;
  ChoiceRow& c = t->choice[0];
  put_label(c.collective, "all_reduce");
  put_label(c.planner, "mesh");
  put_label(c.runner_up, "ring");
  c.chosen_by = ChosenBy::kMeasured;
  c.predicted_ns = 4321;
  put_label(c.times[0].planner, "mesh");
  c.times[0].operations = 9;
}

// Memory with the name that ours has, and these bytes.
int foreign_memory(const void* data, std::size_t bytes, bool sealed = true) {
  const int fd = memfd_create(kCountersName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(pwrite(fd, data, bytes, 0), static_cast<ssize_t>(bytes));
  if (sealed) {
    EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  }
  return fd;
}

TEST(Counters, WhatAnEngineWritesIsFoundAndReadWhole) {
  CountersWriter writer(Role::kRank, 100_ns), other(Role::kEndpoint, 200_ns);
  ASSERT_EQ(writer.refused(), "");
  fill(&writer.table());
  writer.publish(500_ns);
  other.publish(600_ns);
  auto scan = scan_counters(getpid());
  ASSERT_TRUE(scan.ok());
  ASSERT_EQ(scan.value().tables.size(), 2u);
  EXPECT_EQ(scan.value().notes.size(), 0u) << scan.value().notes[0];
  EXPECT_EQ(scan.value().tables[0].pid, getpid());
  const CountersTable& t = *scan.value().tables[0].table;
  EXPECT_EQ(t.pid, getpid());
  EXPECT_EQ(t.rank, 3);
  EXPECT_STREQ(t.process, "counters_test");
  EXPECT_STREQ(t.host, "host-a");
  EXPECT_EQ(t.started_ns, 100u);
  EXPECT_EQ(t.updated_ns, 500u);
  EXPECT_STREQ(t.nic[0].device, "eth0");
  EXPECT_EQ(t.nic[1].at(NicMetric::kReceiveBytes), 77u);
  EXPECT_STREQ(t.link[0].peer, "rank 4");
  EXPECT_EQ(t.link[0].at(LinkMetric::kSmoothedRtt), 1234u);
  EXPECT_EQ(t.at(ProcessMetric::kMessagesSent), 5u);
  ASSERT_EQ(t.choices, 1u);
  EXPECT_STREQ(t.choice[0].planner, "mesh");
  EXPECT_EQ(t.choice[0].predicted_ns, 4321u);
  EXPECT_EQ(t.choice[0].times[0].operations, 9u);
  EXPECT_EQ(scan.value().tables[1].table->role, Role::kEndpoint);
}

TEST(Counters, AllProcessesAreLookedThrough) {
  CountersWriter writer(Role::kRank, 1_ns);
  fill(&writer.table());
  writer.publish(2_ns);
  const auto scan = scan_counters();
  ASSERT_TRUE(scan.ok());
  const auto& tables = scan.value().tables;
  EXPECT_TRUE(std::any_of(tables.begin(), tables.end(), [](const ScannedTable& t) { return t.pid == getpid(); }));
  EXPECT_FALSE(scan_counters(0, "/no/such/folder").ok());
}

TEST(Counters, ATableIsNeverSeenHalfWritten) {
  CountersWriter writer(Role::kRank, 1_ns);
  fill(&writer.table());
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    CountersTable& t = writer.table();
    for (std::uint64_t k = 1; !stop.load(); ++k) {
      t.links = static_cast<std::uint32_t>(1 + k % 40);
      for (std::uint32_t i = 0; i < t.links; ++i) t.link[i] = t.link[0];
      t.nic[0].values.fill(k);
      for (std::uint32_t i = 0; i < t.links; ++i) t.link[i].values.fill(k);
      t.choices = static_cast<std::uint32_t>(1 + k % 30);
      for (std::uint32_t i = 0; i < t.choices; ++i) t.choice[i] = t.choice[0];
      for (std::uint32_t i = 0; i < t.choices; ++i) t.choice[i].predicted_ns = k;
      t.values.fill(k);
      writer.publish(Nanos{static_cast<std::int64_t>(k)});
      if (k % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  std::set<std::uint64_t> seen;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (seen.size() < 100 && std::chrono::steady_clock::now() < until) {
    const auto scan = scan_counters(getpid());
    ASSERT_TRUE(scan.ok());
    if (scan.value().tables.empty()) continue;  // never at rest while it was looked at, which a note says
    const CountersTable& t = *scan.value().tables[0].table;
    const std::uint64_t k = t.updated_ns;
    if (k == 0) continue;
    seen.insert(k);
    ASSERT_EQ(t.links, 1 + k % 40);
    for (const std::uint64_t v : t.nic[0].values) ASSERT_EQ(v, k);
    for (const std::uint64_t v : t.values) ASSERT_EQ(v, k);
    for (std::uint32_t l = 0; l < t.links; ++l) {
      for (const std::uint64_t v : t.link[l].values) ASSERT_EQ(v, k);
    }
    ASSERT_EQ(t.choices, 1 + k % 30);
    for (std::uint32_t c = 0; c < t.choices; ++c) ASSERT_EQ(t.choice[c].predicted_ns, k);
  }
  stop = true;
  thread.join();
  EXPECT_GT(seen.size(), 10u);
}

TEST(Counters, AKilledProcessLeavesNothing) {
  Child child([] {
    auto* writer = new CountersWriter(Role::kEndpoint, 1_ns);
    writer->publish(2_ns);
  });
  ASSERT_EQ(scan_counters(child.pid()).value().tables.size(), 1u);
  const int pid = child.pid();
  child.kill();
  EXPECT_EQ(scan_counters(pid).value().tables.size(), 0u);
  EXPECT_EQ(scan_counters(pid).value().notes.size(), 0u);
}

TEST(Counters, AForkedChildDoesNotShowItsParentsTable) {
  CountersWriter writer(Role::kRank, 1_ns);
  fill(&writer.table());
  writer.publish(2_ns);
  const Child child([] {});
  const auto scan = scan_counters(child.pid());
  EXPECT_EQ(scan.value().tables.size(), 0u);
  EXPECT_EQ(scan.value().notes.size(), 0u);
}

TEST(Counters, ForeignAndBrokenMemoryIsNamedAndPassedOver) {
  CountersWriter good(Role::kRank, 1_ns);
  fill(&good.table());
  good.publish(2_ns);
  const auto table = [&] {
    auto t = std::make_unique<CountersTable>(good.table());
    t->sequence = 2;
    return t;
  };
  const auto expect = [&](int fd, const char* reason) {
    const auto scan = scan_counters(getpid());
    EXPECT_EQ(scan.value().tables.size(), 1u) << reason;
    ASSERT_EQ(scan.value().notes.size(), 1u) << reason;
    const std::string& note = scan.value().notes[0];
    EXPECT_EQ(note.rfind("pid " + std::to_string(getpid()) + ", descriptor ", 0), 0u) << note;
    EXPECT_NE(note.find(reason), std::string::npos) << note;
    close(fd);
  };
  const auto expect_of = [&](const std::function<void(CountersTable*)>& spoil, const char* reason) {
    auto t = table();
    spoil(t.get());
    expect(foreign_memory(t.get(), sizeof *t), reason);
  };
  expect(foreign_memory("", 0), "0 bytes");
  expect(foreign_memory("something quite different, of some length, but not ours", 55), "no table of ours");
  expect(foreign_memory(table().get(), sizeof(CountersTable) - 8), "a table has");
  expect(foreign_memory(table().get(), sizeof(CountersTable), false), "not sealed");
  expect_of([](CountersTable* t) { t->magic = 0; }, "nothing is written");
  expect_of([](CountersTable* t) { t->version = 9; }, "it has version 9, this program reads version 4");
  expect_of([](CountersTable* t) { t->table_bytes = 8; }, "it names 8 bytes");
  expect_of([](CountersTable* t) { t->sequence = 3; }, "is the process stopped?");
  expect_of([](CountersTable* t) { t->role = static_cast<Role>(7); }, "no role 7");
  expect_of([](CountersTable* t) { t->nics = 33; }, "33 NICs");
  expect_of([](CountersTable* t) { t->links = 0xffffffff; }, "4294967295 links");
  expect_of([](CountersTable* t) { t->link[0].nic = 2; }, "link 0 is on NIC 2 of 2");
  expect_of([](CountersTable* t) { std::memset(t->nic[1].device, 'x', sizeof t->nic[1].device); },
            "a name of NIC 1 is no text");
  expect_of([](CountersTable* t) { put_label(t->link[0].peer, "x"), t->link[0].peer[0] = '\x1b'; },
            "a name of link 0 is no text");
  expect_of([](CountersTable* t) { t->choices = 0xffffffff; }, "4294967295 choices");
  expect_of([](CountersTable* t) { t->choices = 65; }, "65 choices, a table has 64");
  expect_of([](CountersTable* t) { t->choice[0].chosen_by = static_cast<ChosenBy>(0); },
            "choice 0 is of an unknown kind, 0");
  expect_of([](CountersTable* t) { t->choice[0].chosen_by = static_cast<ChosenBy>(5); },
            "choice 0 is of an unknown kind, 5");
  expect_of([](CountersTable* t) { t->choice[0].reason = static_cast<ChoiceReason>(5); },
            "choice 0 has an unknown reason, 5");
  for (const auto name :
       {+[](ChoiceRow* c) { return &c->collective; }, +[](ChoiceRow* c) { return &c->planner; },
        +[](ChoiceRow* c) { return &c->runner_up; }, +[](ChoiceRow* c) { return &c->times[7].planner; }}) {
    expect_of([&](CountersTable* t) { std::memset(name(&t->choice[0]), 'x', sizeof *name(&t->choice[0])); },
              "a name of choice 0 is no text");
  }
  expect_of([](CountersTable* t) { t->process[0] = '\n'; }, "the name of its process is no text");
  EXPECT_EQ(scan_counters(getpid()).value().notes.size(), 0u);
}

TEST(Counters, AReaderCanNeitherWriteNorCutThem) {
  CountersWriter writer(Role::kRank, 1_ns);
  const std::string folder = "/proc/self/fd/";
  int fd = -1;
  for (int i = 3; i < 64 && fd < 0; ++i) {
    char link[64] = {};
    if (readlink((folder + std::to_string(i)).c_str(), link, sizeof link - 1) > 0 && std::strstr(link, kCountersName))
      fd = i;
  }
  ASSERT_GE(fd, 0);
  const int again = open((folder + std::to_string(fd)).c_str(), O_RDWR);
  ASSERT_GE(again, 0);
  EXPECT_NE(ftruncate(again, 0), 0);
  EXPECT_NE(ftruncate(again, 2 * sizeof(CountersTable)), 0);
  if ((fcntl(again, F_GET_SEALS) & 0x0010) != 0) {
    EXPECT_NE(pwrite(again, "x", 1, 0), 1);
    EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0), MAP_FAILED);
  }
  close(again);
}

TEST(Counters, ProcessesOfOtherUsersAreCountedAsHidden) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  CountersWriter writer(Role::kRank, 1_ns);
  writer.publish(2_ns);
  const int parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    if (setgid(65534) != 0 || setuid(65534) != 0) _exit(10);
    const auto scan = scan_counters(parent);
    _exit(scan.ok() && scan.value().tables.empty() && scan.value().hidden == 1 && scan.value().notes.empty() ? 0 : 11);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Without pid namespaces /proc/PID/status has no NSpid.
TEST(Counters, AProcessIsFoundWhereTheKernelHasNoPidNamespaces) {
  CountersWriter writer(Role::kRank, 1_ns);
  writer.publish(2_ns);
  const std::string pid = std::to_string(getpid());
  const auto tables_with = [&](const std::string& status) {
    char proc[] = "/tmp/canary-proc.XXXXXX";
    EXPECT_NE(mkdtemp(proc), nullptr);
    const std::filesystem::path process = std::filesystem::path(proc) / pid;
    std::filesystem::create_directory(process);
    std::filesystem::create_symlink("/proc/" + pid + "/fd", process / "fd");
    std::ofstream(process / "status") << status;
    const auto scan = scan_counters(0, proc);
    std::filesystem::remove_all(proc);
    return scan.ok() ? scan.value().tables.size() : 99;
  };
  EXPECT_EQ(tables_with("Name:\tx\nPid:\t" + pid + "\nPPid:\t1\nTracerPid:\t0\n"), 1u);
  EXPECT_EQ(tables_with("Name:\tx\nPid:\t1\nNSpid:\t1\t" + pid + "\n"), 1u) << "the innermost namespace's counts";
  EXPECT_EQ(tables_with("Name:\tx\nPid:\t" + pid + "\nNSpid:\t" + pid + "\t1\n"), 0u) << "one's parent's, inherited";
  EXPECT_EQ(tables_with(""), 0u) << "gone";
}

TEST(Counters, MetricsAreNamedAsPrometheusWantsThem) {
  std::set<std::string> names;
  for (const auto metrics : {nic_metrics(), link_metrics(), process_metrics()}) {
    for (const MetricInfo& m : metrics) {
      const std::string name = m.name;
      EXPECT_TRUE(names.insert(name + "{" + m.label + "}").second) << name;
      EXPECT_EQ(name.rfind("canary_", 0), 0u) << name;
      EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"), std::string::npos) << name;
      EXPECT_EQ(name.ends_with("_total"), m.kind == MetricKind::kCounter) << name;
      if (m.unit == MetricUnit::kNanos) {
        EXPECT_TRUE(name.ends_with("_seconds")) << name;
      }
      if (m.unit == MetricUnit::kBytesPerSecond) {
        EXPECT_TRUE(name.ends_with("_bytes_per_second")) << name;
      }
      if (m.unit == MetricUnit::kBytes) {
        EXPECT_NE(name.find("bytes"), std::string::npos) << name;
      }
      EXPECT_TRUE(std::string(m.help).ends_with(".")) << name;
    }
  }
}

TEST(Counters, LabelsAreCutAndMadePrintable) {
  char label[6];
  put_label(label, "a\nb\xff");
  EXPECT_STREQ(label, "a?b?");
  put_label(label, "longer than it");
  EXPECT_STREQ(label, "longe");
}

}  // namespace
}  // namespace canarynet::ipc
