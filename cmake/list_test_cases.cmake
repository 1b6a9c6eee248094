# SPDX-License-Identifier: MIT
# Runs after a doctest program was built: writes one add_test per test case to list_file. Input variables: program,
# list_file, area, topic, environment, folder, seconds.
execute_process(
  COMMAND "${program}" --list-test-cases --no-colors
  OUTPUT_VARIABLE output
  COMMAND_ERROR_IS_FATAL ANY)

# CMake would take brackets and semicolons for its list syntax.
string(REPLACE "[doctest]" "" output "${output}")
string(REPLACE "[" "<lb>" output "${output}")
string(REPLACE "]" "<rb>" output "${output}")
string(REPLACE ";" "<sc>" output "${output}")
string(REGEX MATCHALL "[^\n]+" lines "${output}")

set(script "")
foreach(line IN LISTS lines)
  if(line MATCHES "^=+$" OR line MATCHES "^ (listing|unskipped)")
    continue()
  endif()
  string(REPLACE "<lb>" "[" line "${line}")
  string(REPLACE "<rb>" "]" line "${line}")
  string(REPLACE "<sc>" ";" line "${line}")
  string(REPLACE "\\" "\\\\" filter "${line}")
  string(REPLACE "," "\\," filter "${filter}")
  set(name "${area}/${topic}: ${line}")
  # Test cases that need a GPU have a label: "ctest -L gpu" runs only them.
  set(labels "${area}")
  if(line MATCHES "^gpu: ")
    list(APPEND labels gpu)
  endif()
  string(APPEND script "add_test([==[${name}]==] [==[${program}]==] [==[--test-case=${filter}]==] --no-colors)\n")
  # A filter that matches no test must not pass.
  string(
    APPEND
    script
    "set_tests_properties([==[${name}]==] PROPERTIES LABELS [==[${labels}]==] TIMEOUT ${seconds} WORKING_DIRECTORY [==[${folder}]==] "
    "ENVIRONMENT [==[${environment}]==] SKIP_REGULAR_EXPRESSION [==[(^|\n)SKIP: ]==] FAIL_REGULAR_EXPRESSION "
    "[==[test cases: +0 ]==])\n")
endforeach()
file(WRITE "${list_file}" "${script}")
