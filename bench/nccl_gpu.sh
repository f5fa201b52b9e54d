#!/bin/bash
# NCCL itself on the plugin: two ranks on one GPU, each a host of its own (NCCL_HOSTID), results compared with the
# CPU's, a table at the end.
#
#   bench/nccl_gpu.sh [--build DIR] [--plugin FILE] [--python PYTHON] [--quick] [--out DIR]
#
# A small C++ program (bench/nccl_gpu/program.cc) and torch.distributed (torch_ranks.py) run all_reduce, all_gather,
# reduce_scatter, broadcast, send/recv and all_to_all with 1 B to 64 MiB, of floats or of odd numbers of bytes, with the
# protocols Simple, LL and LL128 and the algorithms Ring and Tree; then all-reduces while one of two lanes is killed
# every half second. Two loopback addresses stand in for NICs. Kernels of two processes take turns on one GPU, so the
# speeds say nothing of the transport: this is about loading, results and failover. If something is missing (GPU,
# libnccl, torch, a way to kill a lane) it is named below the table, and the rest is run. Exit status: 0 all right,
# 1 something failed, 77 nothing could be run.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/release plugin='' python=python3 quick=0 out=''
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2; shift 2 ;;
    --plugin) plugin=$2; shift 2 ;;
    --python) python=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --quick) quick=1; shift ;;
    -h|--help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "nccl_gpu: unknown option $1 (--help)" >&2; exit 2 ;;
  esac
done
[ -n "$plugin" ] || plugin=$build/plugins/nccl/libnccl-net-canary.so
no_plugin() { echo "nccl_gpu: $1: build it (target nccl-net-canary) or name it with --plugin" >&2; exit 2; }
plugin=$(readlink -f "$plugin") || no_plugin "no plugin"
[ -f "$plugin" ] || no_plugin "$plugin is not there"
if [ -n "$out" ]; then mkdir -p "$out" || exit 2; else out=$(mktemp -d /tmp/canary-nccl-gpu.XXXXXX) || exit 2; fi

missing=() rows=() failed=0 ran=0
note() { missing+=("$*"); echo "not run: $*"; }

# --- the machine ------------------------------------------------------------------------------------------------------

gpu=$(nvidia-smi --query-gpu=name,compute_mode --format=csv,noheader 2>/dev/null | head -1)
have_gpu=0
if [ -z "$gpu" ]; then
  note "everything on a GPU: nvidia-smi finds none"
elif [[ $gpu != *Default* ]]; then
  note "everything on a GPU: $gpu: two processes need the compute mode Default"
else
  have_gpu=1
  echo "GPU: $gpu"
fi

# The first folder that has the file.
folder_with() {
  local file=$1 d
  shift
  for d in "$@"; do [ -e "$d/$file" ] && { echo "$d"; return 0; }; done
  return 1
}
wheels=$("$python" -c 'import os, nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null || true)
nccl_include=$(folder_with nccl.h ${NCCL_HOME:+"$NCCL_HOME/include"} ${wheels:+"$wheels/nccl/include"} \
  /usr/local/cuda/include /usr/include)
nccl_lib=$(folder_with libnccl.so.2 ${NCCL_HOME:+"$NCCL_HOME/lib"} ${wheels:+"$wheels/nccl/lib"} /usr/local/cuda/lib64 \
  /usr/lib/x86_64-linux-gnu /usr/lib64)
cuda_include=$(folder_with cuda_runtime.h ${CUDA_HOME:+"$CUDA_HOME/include"} /usr/local/cuda/include \
  ${wheels:+"$wheels/cuda_runtime/include"})
cuda_lib=$(folder_with libcudart.so ${CUDA_HOME:+"$CUDA_HOME/lib64"} /usr/local/cuda/lib64 ||
  folder_with libcudart.so.12 ${wheels:+"$wheels/cuda_runtime/lib"})
program=
if [ -z "$nccl_include" ] || [ -z "$nccl_lib" ] || [ -z "$cuda_include" ] || [ -z "$cuda_lib" ]; then
  note "the C++ program: nccl.h, libnccl.so.2, cuda_runtime.h and libcudart are needed (NCCL_HOME, CUDA_HOME)"
else
  cudart=$(cd "$cuda_lib" && ls libcudart.so* | head -1)
  if ${CXX:-c++} -std=c++20 -O2 -Wall -Wextra -I"$nccl_include" -I"$cuda_include" -o "$out/nccl_gpu_program" \
      "$root/bench/nccl_gpu/program.cc" -L"$nccl_lib" -l:libnccl.so.2 -L"$cuda_lib" -l:"$cudart" \
      -Wl,-rpath,"$nccl_lib:$cuda_lib" 2> "$out/compile.log"; then
    program=$out/nccl_gpu_program
    echo "NCCL: $nccl_lib/libnccl.so.2, the program is built"
  else
    failed=1
    echo "FAILED: the C++ program does not compile: $out/compile.log"
    tail -5 "$out/compile.log"
    missing+=("the C++ program: it does not compile: $out/compile.log")
  fi
fi
torch=$("$python" -c 'import torch; print(torch.__version__ if torch.cuda.is_available() else "")' 2>/dev/null)
[ -n "$torch" ] || note "torch.distributed: $python has no torch that sees a GPU"

# --- two ranks --------------------------------------------------------------------------------------------------------

port=$((20000 + $$ % 10000))
# ranks NAME LIMIT_S "VAR=VALUE..." COMMAND...: runs both ranks to their end; logs in $out/NAME.{0,1}. Status 0: both
# were fine. They meet by NCCL_COMM_ID or, without it, by MASTER_PORT: rank 0 can't listen there for both.
ranks() {
  local name=$1 limit=$2 variables=$3 rank pids=() status=0
  shift 3
  port=$((port + 1))
  for rank in 0 1; do
    env NCCL_NET_PLUGIN="$plugin" NCCL_NET=Canary NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MNNVL_ENABLE=0 \
      NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_RAS_ENABLE=0 \
      NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV,TUNING CANARY_RAILS=127.0.0.1,127.0.0.2 \
      NCCL_HOSTID=canary-$rank RANK=$rank WORLD_SIZE=2 NCCL_COMM_ID=127.0.0.1:$port MASTER_PORT=$port $variables \
      timeout -k 5 "$limit" "$@" > "$out/$name.$rank" 2>&1 &
    pids+=($!)
  done
  for rank in 0 1; do wait "${pids[$rank]}" || status=1; done
  return $status
}
# Prints lines of the log that show NCCL went through the plugin and nothing else.
proven() {
  local name=$1 rank
  for rank in 0 1; do
    grep -q "Loaded net plugin Canary (v1[0-9])" "$out/$name.$rank" || { echo "no plugin"; return 1; }
    grep -q "via NET/Canary/0" "$out/$name.$rank" || { echo "no channel"; return 1; }
    ! grep -q "Using network Socket" "$out/$name.$rank" || { echo "sockets"; return 1; }
  done
  echo yes
}
columns() { printf '%-10s %-7s %-7s %-7s %-12s %s\n' "$@"; }
heading() { columns program proto algo result "plugin used" figures; }
row() { rows+=("$(columns "$@")"); columns "$@"; }

sizes="1 2 3 5 4 64 1000 4100 65536 262148 1048576 4194308 16777216 67108864"
[ $quick = 1 ] && sizes="1 3 4 4100 1048576"
case_of() { # KIND PROTOCOL ALGORITHM COMMAND...
  local kind=$1 protocol=$2 algorithm=$3 name=$1-$2-$3 result proof variables=
  shift 3
  [ "$protocol" = default ] || variables="NCCL_PROTO=$protocol"
  # Tree serves all-reduce only: the other collectives keep their algorithm.
  [ "$algorithm" = default ] || variables="$variables NCCL_ALGO=allreduce:$algorithm"
  ran=1
  result=right
  ranks "$name" 300 "$variables" "$@" $sizes || result=FAILED
  grep -q "^WRONG" "$out/$name".[01] && result=WRONG
  grep -q "^CHECK" "$out/$name.0" || result=FAILED
  proof=$(proven "$name") || result=FAILED
  [ "$result" = right ] || failed=1
  row "$kind" "$protocol" "$algorithm" "$result" "$proof" "$(grep -h '^CHECK' "$out/$name.0" | cut -d' ' -f2-)"
}

if [ $have_gpu = 1 ]; then
  echo; heading
  for protocol in default Simple LL LL128; do
    for algorithm in default Ring Tree; do
      [ $quick = 1 ] && [ "$protocol-$algorithm" != default-default ] && [ "$protocol-$algorithm" != LL-Tree ] &&
        continue
      [ -n "$program" ] && case_of c++ $protocol $algorithm "$program" check
      [ -n "$torch" ] &&
        case_of torch $protocol $algorithm env -u NCCL_COMM_ID "$python" "$root/bench/nccl_gpu/torch_ranks.py"
    done
  done
fi

# --- a lane killed in the middle --------------------------------------------------------------------------------------

# Resets the lanes over the second address, by whatever this machine allows.
kill_lane() { ss -K src 127.0.0.2 dst 127.0.0.2 2>/dev/null | grep -q 127.0.0.2; }
if [ $have_gpu = 1 ] && [ -n "$program" ]; then
  seconds=20
  [ $quick = 1 ] && seconds=6
  ran=1 kills=0
  ranks faults $((seconds + 120)) "" "$program" loop $seconds &
  job=$!
  while kill -0 $job 2>/dev/null; do
    kill_lane && kills=$((kills + 1))
    sleep 0.5
  done
  result=right
  wait $job || result=FAILED
  grep -q "^LOOP" "$out/faults.0" || result=FAILED
  proof=$(proven faults) || result=FAILED
  downs=$(grep -h "NET/Canary" "$out"/faults.[01] | grep -c " down: ")
  # Right results under kills that no lane has felt would show nothing.
  if [ "$result" = right ] && [ $kills -gt 0 ] && [ "$downs" = 0 ]; then result=FAILED; fi
  if [ "$result" = right ] && [ $kills = 0 ]; then result="not run"; fi
  [ "$result" != FAILED ] || failed=1
  row "c++ loop" default "any" "$result" "$proof" \
    "$(grep -h '^LOOP' "$out/faults.0" | cut -d' ' -f2-), $kills kills, $downs lanes lost"
  [ $kills -gt 0 ] ||
    note "lanes killed under load: 'ss -K' had no effect here (it needs root and CONFIG_INET_DIAG_DESTROY)"
fi

# --- results ----------------------------------------------------------------------------------------------------------

echo
if [ ${#rows[@]} -gt 0 ]; then
  echo "results:"
  heading
  printf '%s\n' "${rows[@]}"
fi
if [ ${#missing[@]} -gt 0 ]; then
  echo "not run here:"
  printf '  %s\n' "${missing[@]}"
fi
if [ $ran = 0 ]; then
  [ $failed = 0 ] || exit 1
  echo "nothing could be run"
  exit 77
fi
echo "logs: $out"
[ $failed = 0 ] && echo "all right" || echo "FAILED"
exit $failed
