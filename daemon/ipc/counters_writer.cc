#include "daemon/ipc/counters_writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/status.h"

namespace canarynet::ipc {
namespace {

constexpr std::size_t kSequenceWord = offsetof(CountersTable, sequence) / 8;
#ifndef F_SEAL_FUTURE_WRITE
constexpr int kSealFutureWrite = 0x0010;
#else
constexpr int kSealFutureWrite = F_SEAL_FUTURE_WRITE;
#endif

std::atomic<std::uint64_t> g_engines{0};

}  // namespace

CountersWriter::CountersWriter(Role role, Nanos now) : table_(std::make_unique<CountersTable>()) {
  CountersTable& t = *table_;
  t.magic = kCountersMagic;
  t.version = kCountersVersion;
  t.table_bytes = sizeof t;
  t.started_ns = static_cast<std::uint64_t>(now.count);
  t.number = g_engines.fetch_add(1, std::memory_order_relaxed) + 1;
  t.pid = getpid();
  t.role = role;
  t.rank = -1;
  put_label(t.process, program_invocation_short_name);
  share();
}

void CountersWriter::share() {
  const auto refuse = [&](const char* what) { refused_ = system_error(what, errno).text(); };
  memory_ = Descriptor(memfd_create(kCountersName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory_.open()) return refuse("memfd_create");
  if (ftruncate(memory_.fd(), sizeof(CountersTable)) != 0) return refuse("ftruncate");
  void* at = mmap(nullptr, sizeof(CountersTable), PROT_READ | PROT_WRITE, MAP_SHARED, memory_.fd(), 0);
  if (at == MAP_FAILED) return refuse("mmap");
  madvise(at, sizeof(CountersTable), MADV_DONTFORK);  // a child counts nothing here
  words_ = static_cast<std::atomic<std::uint64_t>*>(at);
  if (fcntl(memory_.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return refuse("F_ADD_SEALS");
  fcntl(memory_.fd(), F_ADD_SEALS, kSealFutureWrite);  // since Linux 5.1
  fcntl(memory_.fd(), F_ADD_SEALS, F_SEAL_SEAL);
}

CountersWriter::~CountersWriter() {
  if (words_ != nullptr) munmap(words_, sizeof(CountersTable));
}

void CountersWriter::publish(Nanos now) {
  if (words_ == nullptr) return;
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(std::atomic<std::uint64_t>) == 8);
  table_->updated_ns = static_cast<std::uint64_t>(now.count);
  const std::uint64_t before = table_->sequence;
  words_[kSequenceWord].store(before + 1, std::memory_order_relaxed);
  // Every store is a release: a reader that sees one of them sees the odd sequence as well.
  const auto* from = reinterpret_cast<const unsigned char*>(table_.get());
  table_->for_each_used([&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin / 8; i < end / 8; ++i) {
      if (i == kSequenceWord) continue;
      std::uint64_t word = 0;
      std::memcpy(&word, from + 8 * i, 8);
      words_[i].store(word, std::memory_order_release);
    }
  });
  table_->sequence = before + 2;
  words_[kSequenceWord].store(before + 2, std::memory_order_release);
}

}  // namespace canarynet::ipc
