#!/bin/sh
# symbols_test.sh NM ARCHIVE -- the files of an instruction set must define only functions of their own namespace.
# Anything weak there (an inline function, a template) could be the copy the linker keeps for the whole program, and it
# would hold instructions that older CPUs lack.
set -eu
nm=$1
archive=$2
checked=0
for isa in sse4 avx2 avx512; do
  for object in $("$nm" -A --defined-only "$archive" | sed -n "s/^.*:\([a-z0-9]*_$isa\.cc\.o\):.*/\1/p" | sort -u); do
    checked=$((checked + 1))
    # Lower case t, r, d, b: local symbols, which no other object can see.
    strangers=$("$nm" -A --defined-only --demangle "$archive" | sed -n "s/^.*:$object: *[0-9a-f]* //p" |
      grep -v '^[trdbn] ' | grep -v "^T canarynet::kernels_$isa::" || true)
    if [ -n "$strangers" ]; then
      echo "$object defines more than canarynet::kernels_$isa:"
      echo "$strangers"
      exit 1
    fi
    libhwy=$("$nm" -A --undefined-only --demangle "$archive" | grep ":$object:.*hwy" || true)
    if [ -n "$libhwy" ]; then
      echo "$object needs libhwy: $libhwy"
      exit 1
    fi
  done
done
if [ "$checked" -ne 8 ]; then
  echo "expected 8 objects of instruction sets, found $checked"
  exit 1
fi
echo "$checked objects checked"
