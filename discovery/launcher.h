// discovery/launcher.h -- reads which rank of how many this process is, and where the ranks meet, from the environment
// of its launcher.
//
// It looks for torchrun (RANK, WORLD_SIZE), then Open MPI (OMPI_COMM_WORLD_RANK, _SIZE), then SLURM (SLURM_PROCID,
// SLURM_NTASKS): the innermost launcher first, since torchrun and mpirun also run within SLURM. Canary's own variables
// come before all of them and are not read here.
// The ranks meet at CANARY_RENDEZVOUS if it is set; else at torchrun's MASTER_ADDR and MASTER_PORT + 1 (torchrun itself
// listens on MASTER_PORT), or at the first host of SLURM's list and a port made from job and step number. Open MPI
// tells no address. Pure but for the environment, which is handed in.
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
  std::string no_join;      // if there is none: why, and what to set, if that can be said
};

// Returns nullptr for a variable that is not set.
using Environment = std::function<const char*(const char* name)>;

// Reads a variable as a whole number from 0 to `max`; *set says whether it is there. The error for a wrong one names it
// and its value.
inline constexpr long long kAnyNumber = std::numeric_limits<long long>::max();
Status read_number(const Environment& environment, const char* name, long long* value, bool* set,
                   long long max = kAnyNumber);

// The error for a wrong variable names it; without any variable the Launch is empty.
Result<Launch> read_launch(const Environment& environment);

// The first host of SLURM's compressed list: "node[03-07,9],login" → "node03". Empty if the list is malformed.
std::string first_host_of(const std::string& list);

}  // namespace canarynet
