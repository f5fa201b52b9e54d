// base/fork.h -- a forked child finds nothing of this library open and nothing locked, and can tell its parent's things
// from its own.
//
// What: a number for each process in a chain of forks; children that close their copies of all Descriptors
// (base/descriptor.h), since a copy keeps a connection alive that the parent, or its death, has ended; and state of the
// whole process that a child begins anew.
// Threads: any. Memory: constant, never freed. A child made by a bare clone() is not noticed. Nothing happens before
// close_descriptors_in_children(): programs that fork in order to hand descriptors on don't call it.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace canarynet {

// Takes effect from now on. May be called any number of times.
void close_descriptors_in_children();
// The number of this process: one more in each generation of children.
std::uint32_t process_number();

// Notes a descriptor that is open and ours, until it is about to be closed. Lock-free.
void remember_descriptor(int fd);
void forget_descriptor(int fd);

// The process's one T. The first call makes it, and it lives as long as the process, whatever runs while that ends. T
// has a `mutex`, under which it is whole: fork() waits for it. A child has a new T; its parent's is forgotten, not
// freed.
template <typename T>
T& process_wide() {
  alignas(T) static std::byte storage[sizeof(T)];
  static T* const one = [] {
    close_descriptors_in_children();
    T* const made = ::new (storage) T;
    pthread_atfork([] { process_wide<T>().mutex.lock(); }, [] { process_wide<T>().mutex.unlock(); },
                   [] {
                     process_wide<T>().mutex.unlock();  // tools that watch locks see no end of it otherwise
                     ::new (storage) T;
                   });
    return made;
  }();
  return *one;
}

}  // namespace canarynet
