// discovery/launcher.h -- which rank of how many this process is, and where the ranks meet, from the environment of its
// launcher.
//
// In this order: torchrun (RANK, WORLD_SIZE), Open MPI (OMPI_COMM_WORLD_RANK, _SIZE), SLURM (SLURM_PROCID,
// SLURM_NTASKS): the innermost launcher first, since torchrun and mpirun also run within SLURM. Canary's own variables
// come before all of them and are not read here.
// Where they meet: CANARY_RENDEZVOUS where set; else torchrun's MASTER_ADDR and MASTER_PORT + 1 (torchrun itself
// listens on MASTER_PORT), or the first host of SLURM's list and a port made from job and step number. Open MPI tells
// nobody an address. Pure but for the environment, which is handed in.
#pragma once

#include <functional>
#include <limits>
#include <string>

#include "base/status.h"

namespace canarynet {

struct Launch {
  int rank = -1;
  int world_size = 0;
  std::string launcher;     // "torchrun"; empty: none was found
  std::string join;         // "tcp://host:port"; empty: not told
  std::string join_source;  // "MASTER_ADDR:MASTER_PORT+1", for messages
  std::string no_join;      // then, where it can be said: why, and what to set
};

// nullptr where a variable is not set.
using Environment = std::function<const char*(const char* name)>;

// A variable as a whole number from 0 to `max`; *set says whether it is there. One that is wrong is an error naming it
// and its value.
inline constexpr long long kAnyNumber = std::numeric_limits<long long>::max();
Status read_number(const Environment& environment, const char* name, long long* value, bool* set,
                   long long max = kAnyNumber);

// A variable that is there but wrong is an error naming it; none at all gives an empty Launch.
Result<Launch> read_launch(const Environment& environment);

// The first host of SLURM's compressed list: "node[03-07,9],login" → "node03". Empty when it is malformed.
std::string first_host_of(const std::string& list);

}  // namespace canarynet
