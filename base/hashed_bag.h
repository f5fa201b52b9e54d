// base/hashed_bag.h -- a bag of things that are found by the hash of their key.
//
// What: several things may have one hash, and the bag has no order; the caller decides which of them it looks for.
// Cost: a walk sees the things of one hash, and about four others if all room is used.
// Memory: reserve() allocates all of it; beyond that add() doubles it. Reserved places stay untouched until they are
// used, but for one byte each. One owner thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/reserved.h"

namespace canarynet {

// Finalizer of SplitMix64 (Steele, Lea, Flood 2014): it spreads consecutive numbers over all bits.
constexpr std::uint64_t mixed_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

template <typename T>
class HashedBag {
 public:
  std::size_t size() const { return size_; }

  void reserve(std::size_t count) {
    if (count <= places_.capacity()) return;
    places_.reserve(count);
    buckets_.assign(std::bit_ceil(std::max<std::size_t>(count / kPerBucket, 16)), kNone);
    for (std::uint32_t i = 0; i < places_.size(); ++i) {
      if (places_[i].used) link(i);
    }
  }
  void add(std::uint64_t hash, T thing) {
    if (size_ == places_.capacity()) reserve(std::max<std::size_t>(16, size_ * 2));
    std::uint32_t at = unused_;
    if (at != kNone) {
      unused_ = places_[at].next;
      places_[at] = {std::move(thing), hash, kNone, true};
    } else {
      at = static_cast<std::uint32_t>(places_.size());
      places_.push_back({std::move(thing), hash, kNone, true});
    }
    link(at);
    ++size_;
  }
  // Moves one thing with that hash for which is(thing) holds into *thing. Returns false if there is none.
  template <typename Is>
  bool take(std::uint64_t hash, Is is, T* thing) {
    if (size_ == 0) return false;
    for (std::uint32_t* at = &head(hash); *at != kNone; at = &places_[*at].next) {
      if (places_[*at].hash != hash || !is(places_[*at].thing)) continue;
      *thing = std::move(places_[*at].thing);
      unlink(at);
      return true;
    }
    return false;
  }
  // Looks at all things; `is` is called once for each.
  template <typename Is>
  void erase_if(Is is) {
    if (size_ == 0) return;
    for (std::uint32_t& first : buckets_) {
      for (std::uint32_t* at = &first; *at != kNone;) {
        if (is(places_[*at].thing)) {
          unlink(at);
        } else {
          at = &places_[*at].next;
        }
      }
    }
  }
  void clear() {
    erase_if([](const T&) { return true; });
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  static constexpr std::size_t kPerBucket = 4;
  struct Place {
    T thing;
    std::uint64_t hash;
    std::uint32_t next;  // of its bucket, or of the unused ones
    bool used;
  };

  std::uint32_t& head(std::uint64_t hash) { return buckets_[mixed_bits(hash) & (buckets_.size() - 1)]; }
  void link(std::uint32_t at) { places_[at].next = std::exchange(head(places_[at].hash), at); }
  // `at` is the link that names the place.
  void unlink(std::uint32_t* at) {
    Place& p = places_[*at];
    const std::uint32_t place = std::exchange(*at, p.next);
    p.used = false;
    p.next = std::exchange(unused_, place);
    --size_;
  }

  std::vector<Place, ReservedAllocator<Place>> places_;  // places that were ever used
  std::vector<std::uint32_t> buckets_;                   // each names its latest place
  std::uint32_t unused_ = kNone;
  std::size_t size_ = 0;
};

}  // namespace canarynet
