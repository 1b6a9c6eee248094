// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/backends/make/backend.hpp>
#include <tutti/backends/make/job.hpp>
#include <tutti/backends/make/strategy.hpp>

// Backends and strategies by name: those with which the program was linked (tutti::onednn, tutti::mpi and so on). With
// tutti::compiled, a file that includes this header does not compile them. With headers only, it compiles all of them;
// a program that needs a single backend includes that one by name. make/backend_rows.hpp and make/strategy_rows.hpp are
// the only lists of them: adding one takes a folder and a row.
