# SPDX-License-Identifier: MIT
# Runs after a doctest program was built: writes one add_test per test case to list_file. Input variables: program,
# list_file, area, topic, environment, folder, seconds, slow (if true, the cases do not get the label "fast"), emulator (a
# command that runs programs of another processor; may be empty).
execute_process(
  COMMAND ${emulator} "${program}" --list-test-cases --no-colors
  OUTPUT_VARIABLE output
  COMMAND_ERROR_IS_FATAL ANY)

execute_process(
  COMMAND ${emulator} "${program}" --list-test-cases --test-suite=nightly --no-colors
  OUTPUT_VARIABLE nightly
  COMMAND_ERROR_IS_FATAL ANY)

# CMake would take brackets and semicolons for its list syntax.
foreach(text IN ITEMS output nightly)
  string(REPLACE "[doctest]" "" ${text} "${${text}}")
  string(REPLACE "[" "<lb>" ${text} "${${text}}")
  string(REPLACE "]" "<rb>" ${text} "${${text}}")
  string(REPLACE ";" "<sc>" ${text} "${${text}}")
endforeach()
string(REGEX MATCHALL "[^\n]+" lines "${output}")
string(REGEX MATCHALL "[^\n]+" nightly "${nightly}")

set(command "[==[${program}]==]")
if(emulator)
  list(JOIN emulator "]==] [==[" emulator)
  set(command "[==[${emulator}]==] ${command}")
endif()
set(script "")
foreach(line IN LISTS lines)
  if(line MATCHES "^=+$" OR line MATCHES "^ (listing|unskipped)")
    continue()
  endif()
  # ./test.sh leaves out the cases of the test suite "nightly"; tests/nightly.sh runs them.
  set(labels "${area}")
  list(FIND nightly "${line}" at)
  if(at GREATER -1)
    list(APPEND labels nightly)
  elseif(NOT slow)
    list(APPEND labels fast)
  endif()
  string(REPLACE "<lb>" "[" line "${line}")
  string(REPLACE "<rb>" "]" line "${line}")
  string(REPLACE "<sc>" ";" line "${line}")
  string(REPLACE "\\" "\\\\" filter "${line}")
  string(REPLACE "," "\\," filter "${filter}")
  set(name "${area}/${topic}: ${line}")
  # Test cases that need a GPU have a label: "ctest -L gpu" runs only them.
  if(line MATCHES "^gpu: ")
    list(APPEND labels gpu)
  endif()
  string(APPEND script "add_test([==[${name}]==] ${command} [==[--test-case=${filter}]==] --no-colors)\n")
  # A filter that matches no test must not pass.
  string(
    APPEND
    script
    "set_tests_properties([==[${name}]==] PROPERTIES LABELS [==[${labels}]==] TIMEOUT ${seconds} WORKING_DIRECTORY [==[${folder}]==] "
    "ENVIRONMENT [==[${environment}]==] SKIP_REGULAR_EXPRESSION [==[(^|\n)SKIP: ]==] FAIL_REGULAR_EXPRESSION "
    "[==[test cases: +0 ]==])\n")
endforeach()
file(WRITE "${list_file}" "${script}")
