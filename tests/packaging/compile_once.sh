#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# compile_once.sh COMPILER ARGUMENT...: runs the compiler. The tests of this folder compile the same files with tutti's headers in
# different folders. If an earlier call compiled the same preprocessed text with the same options, this one copies its object file
# from the folder COMPILED_ONCE. The text has no names of folders and no numbers of lines, so the object file is the same.
set -euo pipefail
command=("$@")
# The options, without those that only the preprocessed text depends on: folders of headers, macros, and names of files.
key=() output='' compiles=''
while (($#)); do
  case $1 in
    -o) output=$2 && shift ;;
    -c) compiles=1 ;;
    -I | -D | -isystem | -MF | -MT | -MQ) shift ;;
    -I* | -D* | -MD | *.cpp) ;;
    -g* | -v | @*) compiles='' && break ;; # the object file would name files; another output is wanted; a file of options
    *) key+=("$1") ;;
  esac
  shift
done
compile() { ${CMAKE_CXX_COMPILER_LAUNCHER:+"$CMAKE_CXX_COMPILER_LAUNCHER"} "${command[@]}"; }
if [[ -z $compiles || $output != *.o || -z ${COMPILED_ONCE:-} ]]; then
  compile
  exit
fi

# Also writes the list of headers that ninja or make reads.
preprocess=()
for word in "${command[@]}"; do
  if [[ $word == -c ]]; then word=-E; fi
  if [[ $word == "$output" && ${preprocess[-1]} == -o ]]; then word=$output.ii; fi
  preprocess+=("$word")
done
"${preprocess[@]}" -P
compiler=$(realpath "$(command -v "${command[0]}")")
kept=$({ printf '%s\n' "$compiler $(stat -c '%s %Y' "$compiler")" "${key[@]}" | sort && cat "$output.ii"; } | sha256sum)
kept=$COMPILED_ONCE/${kept%% *}.o
rm "$output.ii"
# A test that runs at the same time may be compiling the file: then this one waits for the object file.
mkdir -p "$COMPILED_ONCE"
exec 9>"$kept.lock"
flock 9
if cp "$kept" "$output" 2>/dev/null; then exit; fi
compile
cp "$output" "$kept.$$"
mv "$kept.$$" "$kept"
