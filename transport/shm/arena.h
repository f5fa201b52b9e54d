// transport/shm/arena.h -- memory that peers of this host can read where it lies: what is sent from it goes by
// reference.
//
// What: ArenaStore makes and finds this process's arenas (canary_mem_alloc); PeerArenas maps those of one peer, read
// only.
// Memory: an arena is a sealed memfd, mapped here for reading and writing; it ends with release() or the store, the
// peers' mappings with their lanes or the word that it is gone. A killed process leaves nothing: the kernel frees a
// memfd with its last mapping.
// Thread: one at a time (the engine's owner). Failures: a Status; an arena of a peer that makes no sense is refused
// with its reason.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "transport/shm/ipc.h"

namespace canarynet::shm {

inline constexpr std::uint32_t kArenasMax = 256;  // of one process at a time
// An arena's number: its place in the tables in the low bits, the use of that place above, so that none is used twice.
constexpr std::uint32_t place_of(std::uint32_t arena) { return arena % kArenasMax; }

class ArenaStore {
 public:
  struct Arena {
    std::uint32_t id = 0;  // 0: none
    std::byte* base = nullptr;
    std::size_t bytes = 0;
    Descriptor memory;
    bool detached = false;  // peers no longer see what is written here: it is copied like any other memory
  };

  ArenaStore() = default;
  ArenaStore(const ArenaStore&) = delete;
  ArenaStore& operator=(const ArenaStore&) = delete;
  ~ArenaStore();

  // Zeroed, page-aligned. Where the system refuses to share memory it is ordinary memory.
  Result<void*> allocate(std::size_t bytes);
  // *id: of the arena that is gone. An error when `memory` is none of ours.
  Status release(void* memory, std::uint32_t* id);
  // The arena that holds all of these bytes, unless it is detached; else null. Until the next allocate() or release().
  const Arena* find(const std::byte* data, std::size_t bytes) const;
  // A peer may be reading from it and can't be waited for: from now on it keeps the bytes as they are, this process
  // goes on with private pages over them. Returns 0, or the error number where the system has none: everything is as it
  // was. Allocates nothing.
  int detach(std::uint32_t id);

 private:
  std::vector<Arena> arenas_;  // ascending by base
  std::array<std::uint32_t, kArenasMax> uses_{};
};

class PeerArenas {
 public:
  PeerArenas() = default;
  PeerArenas(const PeerArenas&) = delete;
  PeerArenas& operator=(const PeerArenas&) = delete;
  ~PeerArenas();

  Status add(std::uint32_t id, int memory, std::uint64_t bytes);
  void remove(std::uint32_t id);
  // Null: no such arena, or not all of it lies within.
  const std::byte* at(std::uint32_t id, std::uint64_t offset, std::uint32_t bytes) const;

 private:
  struct Mapping {
    std::uint32_t id = 0;
    const std::byte* base = nullptr;
    std::uint64_t bytes = 0;
  };
  static void unmap(Mapping& mapping);
  std::array<Mapping, kArenasMax> mappings_{};
};

}  // namespace canarynet::shm
