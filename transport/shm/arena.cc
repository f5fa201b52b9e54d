#include "transport/shm/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "transport/shm/segment.h"

namespace canarynet::shm {
namespace {

std::size_t whole_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (std::max<std::size_t>(bytes, 1) + page - 1) / page * page;
}

}  // namespace

ArenaStore::~ArenaStore() {
  for (Arena& arena : arenas_) ::munmap(arena.base, arena.bytes);
}

Result<void*> ArenaStore::allocate(std::size_t bytes) {
  if (bytes > (std::size_t{1} << 46))
    return Status(CANARY_INVALID_ARGUMENT, std::to_string(bytes) + " bytes are too many");
  if (arenas_.size() == kArenasMax) {
    return Status(CANARY_LIMIT, "there are " + std::to_string(kArenasMax) + " blocks already: take few large ones");
  }
  const std::size_t size = whole_pages(bytes);
  Arena arena;
  // Without it, ordinary memory.
  if (auto made = make_sealed_memory("canary-arena", size); made.ok()) {
    if (reserve(made.value().fd(), size).ok()) arena.memory = made.take();
  }
  arena.detached = !arena.memory.open();
  const int how = arena.detached ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, how, arena.memory.fd(), 0);
  if (base == MAP_FAILED) return system_error("shm: mmap of " + std::to_string(size) + " bytes", errno);
  arena.base = static_cast<std::byte*>(base);
  arena.bytes = size;
  for (std::uint32_t place = 0; arena.id == 0; ++place) {
    const bool taken =
        std::any_of(arenas_.begin(), arenas_.end(), [&](const Arena& a) { return place_of(a.id) == place; });
    if (!taken) arena.id = place + ++uses_[place] * kArenasMax;
  }
  const auto at = std::find_if(arenas_.begin(), arenas_.end(), [&](const Arena& a) { return a.base > arena.base; });
  arenas_.insert(at, std::move(arena));
  return base;
}

Status ArenaStore::release(void* memory, std::uint32_t* id) {
  const auto found = std::find_if(arenas_.begin(), arenas_.end(), [&](const Arena& a) { return a.base == memory; });
  if (found == arenas_.end())
    return Status(CANARY_INVALID_ARGUMENT, "this memory was not handed out, or was freed before");
  *id = found->id;
  ::munmap(found->base, found->bytes);
  arenas_.erase(found);
  return {};
}

const ArenaStore::Arena* ArenaStore::find(const std::byte* data, std::size_t bytes) const {
  const auto after = std::upper_bound(arenas_.begin(), arenas_.end(), data,
                                      [](const std::byte* p, const Arena& a) { return p < a.base; });
  if (after == arenas_.begin()) return nullptr;
  const Arena& arena = *(after - 1);
  const auto offset = static_cast<std::size_t>(data - arena.base);
  return !arena.detached && offset < arena.bytes && bytes <= arena.bytes - offset ? &arena : nullptr;
}

int ArenaStore::detach(std::uint32_t id) {
  for (Arena& arena : arenas_) {
    if (arena.id != id || arena.detached) continue;
    // The pages keep their content and their address; writes go to copies of them from here on. Mapped elsewhere first:
    // a mapping that fails over another one may leave a hole there.
    void* copy = ::mmap(nullptr, arena.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, arena.memory.fd(), 0);
    if (copy == MAP_FAILED) return errno;
    if (::mremap(copy, arena.bytes, arena.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, arena.base) == MAP_FAILED) {
      const int error_number = errno;
      ::munmap(copy, arena.bytes);
      return error_number;
    }
    arena.detached = true;
  }
  return 0;
}

PeerArenas::~PeerArenas() {
  for (Mapping& mapping : mappings_) unmap(mapping);
}

void PeerArenas::unmap(Mapping& mapping) {
  if (mapping.base != nullptr) ::munmap(const_cast<std::byte*>(mapping.base), mapping.bytes);
  mapping = {};
}

Status PeerArenas::add(std::uint32_t id, int memory, std::uint64_t bytes) {
  if (id == 0 || bytes == 0) return Status(CANARY_SYSTEM, "shm: the peer announced an arena without number or size");
  if (Status status = check_sealed_memory(memory, bytes); !status.ok()) return status;
  void* base = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, memory, 0);
  if (base == MAP_FAILED) return system_error("shm: mmap of the peer's arena", errno);
  ::madvise(base, bytes, MADV_DONTFORK);
  Mapping& mapping = mappings_[place_of(id)];
  unmap(mapping);
  mapping = {id, static_cast<const std::byte*>(base), bytes};
  return {};
}

void PeerArenas::remove(std::uint32_t id) {
  Mapping& mapping = mappings_[place_of(id)];
  if (mapping.id == id) unmap(mapping);
}

const std::byte* PeerArenas::at(std::uint32_t id, std::uint64_t offset, std::uint32_t bytes) const {
  const Mapping& mapping = mappings_[place_of(id)];
  if (id == 0 || mapping.id != id || offset > mapping.bytes || bytes > mapping.bytes - offset) return nullptr;
  return mapping.base + offset;
}

}  // namespace canarynet::shm
